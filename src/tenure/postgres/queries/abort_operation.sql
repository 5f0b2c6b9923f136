-- Stop an operation that runs. Batches that run now are not waited for.
update tenure.operation
set state = 'aborted', ended_at = clock_timestamp(), aborted_by = :actor::text
where id = :id::bigint and state = 'running'
returning id
