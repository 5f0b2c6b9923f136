-- Read when alarms were last looked for, and the oldest notice that could not be sent.
select (select extract(epoch from clock_timestamp() - at)::double precision from tenure.alarm_round) as round_s,
       failing.sink, failing.error, extract(epoch from clock_timestamp() - failing.fired_at)::double precision as failing_s
from (select) as one
left join lateral (
    select sink, error, alarm.fired_at
    from tenure.alarm join tenure.alarm_notice on alarm_id = alarm.id
    where cleared_at is null and sent_at is null and error is not null
    order by alarm.fired_at limit 1
) as failing on true
