-- List alarms that fired: those that still hold first, then the latest; with who has muted them.
-- Each of the two is read along an index that has no other alarms: those that are over by when they ended.
with page as materialized (
    (select * from tenure.alarm
     where cleared_at is null and fired_at is not null
       and (:tenant::text is null or tenant_id = :tenant::text) and (:kind::text is null or kind = :kind::text)
     order by fired_at desc, id desc
     limit :limit::bigint)
    union all
    (select * from tenure.alarm
     where :history::boolean and cleared_at is not null and fired_at is not null
       and (:tenant::text is null or tenant_id = :tenant::text) and (:kind::text is null or kind = :kind::text)
     order by cleared_at desc
     limit :limit::bigint)
)
select page.id, kind, nullif(tenant_id, ''), nullif(subject, ''), severity, since, fired_at, seen_at, cleared_at, value, threshold,
       summary, next, details::text, mute.muted_by, mute.until, mute.reason
from page
left join lateral (
    select muted_by, until, reason from tenure.alarm_mute
    where until > clock_timestamp() and ended_at is null and coalesce(alarm_mute.kind, page.kind) = page.kind
      and coalesce(alarm_mute.tenant_id, page.tenant_id) = page.tenant_id
      and coalesce(alarm_mute.subject, page.subject) = page.subject
    order by until desc limit 1
) as mute on true
order by cleared_at is not null, cleared_at desc, fired_at desc, page.id desc
limit :limit::bigint
