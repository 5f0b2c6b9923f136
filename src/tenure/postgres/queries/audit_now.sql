-- Compute the time that was :seconds ago by the database's clock.
select clock_timestamp() - :seconds::double precision * interval '1 second'
