-- Take what a sink is to be sent: alarms that fired or cleared and are not muted; no other process takes them meanwhile.
with clock as materialized (
    select clock_timestamp() as t
),
due as materialized (
    select alarm.id, change.what
    from clock, tenure.alarm
    cross join lateral (values ('fired', fired_at), ('cleared', cleared_at)) as change (what, at)
    left join tenure.alarm_notice as notice on (notice.alarm_id, notice.change, notice.sink) = (alarm.id, change.what, :sink::text)
    where fired_at is not null and change.at > t - interval '1 day'
      and (notice.alarm_id is null or notice.sent_at is null and notice.next_at <= t)
      -- What is over for long is no news; and that it is over is none to those who never heard of it.
      and (change.what = 'cleared' or cleared_at is null or cleared_at > t - interval '10 minutes')
      and (change.what = 'fired' or exists (
          select from tenure.alarm_notice as first
          where (first.alarm_id, first.change, first.sink) = (alarm.id, 'fired', :sink::text) and first.sent_at is not null))
      and not exists (
          select from tenure.alarm_mute as mute
          where mute.until > t and mute.ended_at is null and coalesce(mute.kind, alarm.kind) = alarm.kind
            and coalesce(mute.tenant_id, alarm.tenant_id) = alarm.tenant_id
            and coalesce(mute.subject, alarm.subject) = alarm.subject)
    order by change.at, alarm.id
    limit :limit::bigint
),
taken as (
    insert into tenure.alarm_notice (alarm_id, change, sink, next_at)
    select id, what, :sink::text, t + :hold_s::double precision * interval '1 second'
    from clock, due
    order by id, what
    on conflict (alarm_id, change, sink) do update set next_at = excluded.next_at, tries = alarm_notice.tries + 1
    where alarm_notice.sent_at is null and alarm_notice.next_at <= clock_timestamp()
    returning alarm_id, change, tries
)
select taken.change, taken.tries, alarm.id, kind, nullif(tenant_id, ''), nullif(subject, ''), severity, since, fired_at, seen_at,
       cleared_at, value, threshold, summary, next, details::text, null::text, null::timestamptz, null::text
from taken join tenure.alarm on alarm.id = taken.alarm_id
order by taken.alarm_id, taken.change desc
