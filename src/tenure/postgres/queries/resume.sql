-- Let a queue be claimed again; no row when it is not paused.
update tenure.queue
set paused_at = null, paused_by = null, reason = null, resumed_at = clock_timestamp(), resumed_by = :actor::text
where name = :name::text and paused_at is not null
returning name
