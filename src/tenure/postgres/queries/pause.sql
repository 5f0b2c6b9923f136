-- Pause a queue. One that is paused stays as it was paused first; the answer says since when, by whom and why it is, and
-- whether this call did it. A claim that began before may still take a job.
with clock as materialized (
    select clock_timestamp() as t
)
insert into tenure.queue as known (name, paused_at, paused_by, reason)
select :name::text, t, :actor::text, :reason::text from clock
on conflict (name) do update
set paused_at = coalesce(known.paused_at, excluded.paused_at),
    paused_by = coalesce(known.paused_by, excluded.paused_by),
    reason = case when known.paused_at is null then excluded.reason else known.reason end
returning paused_at, paused_by, reason, paused_at = (select t from clock) as new
