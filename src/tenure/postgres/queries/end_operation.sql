-- End an operation that has no item left; one on which another transaction works has some.
update tenure.operation
set state = 'done', ended_at = clock_timestamp()
where id = :id::bigint and state = 'running'
  and not exists (select from tenure.operation_item where operation_id = :id::bigint and state = 'waiting')
returning id
