-- Pause a queue. A paused queue keeps its first pause.
-- The answer gives its time, actor and reason, and whether this call paused it. A claim that began before may still take a
-- job.
insert into tenure.queue as known (name, paused_at, paused_by, reason, paused_in)
values (:name::text, clock_timestamp(), :actor::text, :reason::text, pg_current_xact_id())
on conflict (name) do update
set paused_at = coalesce(known.paused_at, excluded.paused_at),
    paused_by = coalesce(known.paused_by, excluded.paused_by),
    reason = case when known.paused_at is null then excluded.reason else known.reason end,
    paused_in = case when known.paused_at is null then excluded.paused_in else known.paused_in end
returning paused_at, paused_by, reason, paused_in = pg_current_xact_id() as new
