-- Write the conditions that hold: a new one begins, a known one goes on; each fires when it has held for long enough.
with clock as materialized (
    select clock_timestamp() as t
)
insert into tenure.alarm (
    since, seen_at, fired_at, hold_s, value, threshold, kind, tenant_id, subject, severity, summary, next, details)
select t, t, case when hold_s <= 0 then t end, hold_s, value, threshold, kind, tenant_id, subject, severity, summary, next,
       details::jsonb
from clock, unnest(
    :kinds::text[], :tenants::text[], :subjects::text[], :severities::text[], :holds::double precision[],
    :values::double precision[], :thresholds::double precision[], :summaries::text[], :nexts::text[], :details::text[]
) as found (kind, tenant_id, subject, severity, hold_s, value, threshold, summary, next, details)
order by kind, tenant_id, subject
on conflict (kind, tenant_id, subject) where cleared_at is null do update
set seen_at = excluded.seen_at, hold_s = excluded.hold_s, value = excluded.value, threshold = excluded.threshold,
    severity = excluded.severity, summary = excluded.summary, next = excluded.next, details = excluded.details,
    fired_at = coalesce(alarm.fired_at, case
        when alarm.since + excluded.hold_s * interval '1 second' <= excluded.seen_at then excluded.seen_at end)
returning id, fired_at is not null and fired_at = seen_at as has_fired
