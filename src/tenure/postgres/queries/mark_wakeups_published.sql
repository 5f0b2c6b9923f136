-- Record that these wake-ups are published, and when to check whether they were lost; return their ages in seconds.
update tenure.outbox
set published_at = clock_timestamp(), last_error = null,
    check_at = clock_timestamp() + :check_ms::bigint * interval '1 millisecond'
where id = any (:ids::bigint[]) and published_at is null
returning extract(epoch from clock_timestamp() - coalesce(due_at, created_at))::double precision
