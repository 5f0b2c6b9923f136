-- Resume a schedule from this fire time on.
update tenure.schedule
set paused_at = null, paused_by = null, pause_reason = null, fire_at = :fire_at::timestamptz, next_at = :next_at::timestamptz,
    updated_at = clock_timestamp()
where id = :id::bigint
