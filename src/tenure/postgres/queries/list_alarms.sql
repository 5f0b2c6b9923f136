-- List alarms that fired: those that still hold first, then the latest; with who has muted them.
select alarm.id, kind, nullif(tenant_id, ''), nullif(subject, ''), severity, since, fired_at, seen_at, cleared_at, value, threshold,
       summary, next, details::text, mute.muted_by, mute.until, mute.reason
from tenure.alarm
left join lateral (
    select muted_by, until, reason from tenure.alarm_mute
    where until > clock_timestamp() and ended_at is null and coalesce(alarm_mute.kind, alarm.kind) = alarm.kind
      and coalesce(alarm_mute.tenant_id, alarm.tenant_id) = alarm.tenant_id
      and coalesce(alarm_mute.subject, alarm.subject) = alarm.subject
    order by until desc limit 1
) as mute on true
where fired_at is not null and (:history::boolean or cleared_at is null)
  and (:tenant::text is null or tenant_id = :tenant::text) and (:kind::text is null or kind = :kind::text)
order by cleared_at is not null, cleared_at desc, fired_at desc, id desc
limit :limit::bigint
