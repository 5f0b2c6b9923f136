-- Record that these wake-ups are published, and when to check whether they were lost; return their ages in seconds.
-- A wake-up that waited for the end of its queue's pause is not late for that.
update tenure.outbox
set published_at = clock_timestamp(), last_error = null,
    check_at = clock_timestamp() + :check_ms::bigint * interval '1 millisecond'
where id = any (:ids::bigint[]) and published_at is null
returning extract(epoch from clock_timestamp() - greatest(
    coalesce(due_at, created_at), (select resumed_at from tenure.queue where name = outbox.queue)
))::double precision
