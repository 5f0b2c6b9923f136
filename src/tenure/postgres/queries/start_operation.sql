-- Let an operation run: one that was previewed completely, or one that was aborted.
update tenure.operation
set state = 'running', started_at = coalesce(started_at, clock_timestamp()), started_by = :actor::text, ended_at = null,
    aborted_by = null, per_second = coalesce(:per_second::double precision, per_second)
where id = :id::bigint and state = :from::text and collected
returning id
