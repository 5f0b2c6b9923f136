-- List the alarms that hold now, the worst first, and whether somebody has muted them; and how many there are.
select kind, severity, summary, next, extract(epoch from clock_timestamp() - since)::double precision as age_s,
       exists (
           select from tenure.alarm_mute as mute
           where mute.until > clock_timestamp() and mute.ended_at is null and coalesce(mute.kind, alarm.kind) = alarm.kind
             and coalesce(mute.tenant_id, alarm.tenant_id) = alarm.tenant_id
             and coalesce(mute.subject, alarm.subject) = alarm.subject
       ) as is_muted,
       tenant_id, subject, count(*) over () as number
from tenure.alarm
where cleared_at is null and fired_at is not null and not kind = any (:known::text[])
order by severity, fired_at desc, id desc
limit :limit::bigint
