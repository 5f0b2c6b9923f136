-- Begin to drop this id range; one process at a time works on it.
update tenure.range
-- A transaction number from the future is of another cluster, from which this database was restored.
set leaving = least(leaving, pg_current_xact_id()), taken = clock_timestamp() + interval '10 minutes'
where low = :low::bigint and (taken is null or taken < clock_timestamp())
returning low
