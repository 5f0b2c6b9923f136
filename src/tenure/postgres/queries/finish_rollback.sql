-- Record that the jobs which waited to write to what a rollback left are cancelled.
update tenure.dataset_switch set finished_at = clock_timestamp() where id = :id::bigint and finished_at is null
