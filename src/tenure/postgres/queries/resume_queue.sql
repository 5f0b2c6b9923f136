-- Resume a paused queue; return no row when it is not paused.
update tenure.queue
set paused_at = null, paused_by = null, reason = null, paused_in = null, resumed_at = clock_timestamp(), resumed_by = :actor::text
where name = :name::text and paused_at is not null
returning name
