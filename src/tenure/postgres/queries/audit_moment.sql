-- Which moment was so long ago, by the database's clock?
select clock_timestamp() - :seconds::double precision * interval '1 second'
