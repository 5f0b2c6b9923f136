-- Read the database's clock, and the latest times that processes have written.
select clock_timestamp() as now,
       greatest((select max(last_seen_at) from tenure.worker), (select max(made_at) from tenure.range)) as latest
