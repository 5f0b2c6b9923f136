-- Read since when the oldest due job of each queue waits, except in paused queues; skips through the ready index.
with recursive clock as materialized (
    select clock_timestamp() as t
),
skipped as (
    (select contract, queue, priority, type, version from tenure.job
     where role = 'ready' and quarantined_at is null
     order by contract, queue, priority, type collate "C", version collate "C" limit 1)
    union all
    select next.*
    from skipped
    cross join lateral (
        select contract, queue, priority, type, version from tenure.job
        where role = 'ready' and quarantined_at is null
          and (contract, queue, priority, type collate "C", version collate "C")
              > (skipped.contract, skipped.queue, skipped.priority, skipped.type collate "C", skipped.version collate "C")
        order by contract, queue, priority, type collate "C", version collate "C"
        limit 1
    ) as next
),
oldest as materialized (
    select lane.queue, first.id, first.at
    from clock, (select * from skipped limit :lanes::bigint) as lane
    cross join lateral (
        select id, coalesce(due_at, created_at) as at from tenure.job
        where role = 'ready' and quarantined_at is null and contract = lane.contract and queue = lane.queue
          and priority = lane.priority and type collate "C" = lane.type and version collate "C" = lane.version
          and coalesce(due_at, '-infinity') <= t
        order by coalesce(due_at, '-infinity'), id
        limit 1
    ) as first
)
select queue, (array_agg(id order by at, id))[1] as job_id, extract(epoch from t - min(at))::double precision as waited_s
from clock, oldest
where queue not in (select name from tenure.queue where paused_at is not null)
group by queue, t
having extract(epoch from t - min(at)) >= :least_s::double precision
order by queue
