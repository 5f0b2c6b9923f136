-- Read what is to be done in a batch of this operation; nothing unless it runs. Its lock was taken by a statement before.
select of_letters, verb, options::text, started_by, per_second from tenure.operation
where id = :id::bigint and state = 'running' and next_at <= clock_timestamp()
