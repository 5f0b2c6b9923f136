-- Take the turn of an operation with a limit of speed: one transaction works on it at a time.
select id from tenure.operation
where id = :id::bigint and state = 'running' and next_at <= clock_timestamp()
for no key update skip locked
