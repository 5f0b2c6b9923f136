-- Pause a schedule; a paused one keeps its first pause. No row: there is no such schedule.
update tenure.schedule
set paused_at = coalesce(paused_at, clock_timestamp()),
    paused_by = case when paused_at is null then :actor::text else paused_by end,
    pause_reason = case when paused_at is null then :reason::text else pause_reason end,
    updated_at = clock_timestamp()
where application = :application::text and name = :name::text
returning id
