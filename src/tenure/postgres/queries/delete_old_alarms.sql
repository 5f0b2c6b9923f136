-- Delete alarms that are over for long, with their notices; at most a page.
with old as materialized (
    select id from tenure.alarm
    where cleared_at < clock_timestamp() - :keep_sec::double precision * interval '1 second'
    order by cleared_at limit :limit::bigint
),
notices as (
    delete from tenure.alarm_notice where alarm_id in (select id from old)
)
delete from tenure.alarm where id in (select id from old)
returning id
