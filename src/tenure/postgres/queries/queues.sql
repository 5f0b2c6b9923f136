-- Which queues are there, what stands in each, and which of them are paused?
--
-- Nothing here grows with the number of jobs. The queues with ready jobs are found by skipping through their index from
-- one to the next; jobs are counted lane by lane up to a bound. What is held or waits has no index by queue: so many rows
-- are looked at, and when there are more, every count from them is a lower bound. Jobs under all contracts count.
with recursive clock as materialized (
    select clock_timestamp() as t
),
skipped as (
    (select contract, queue from tenure.job where role = 'ready' order by contract, queue limit 1)
    union all
    select next.contract, next.queue
    from skipped
    cross join lateral (
        select contract, queue from tenure.job
        where role = 'ready' and (contract, queue) > (skipped.contract, skipped.queue)
        order by contract, queue
        limit 1
    ) as next
),
pair as materialized (
    select * from skipped limit :queues::bigint
),
held as materialized (
    select queue from tenure.job where role in ('leased', 'active', 'settling') limit :bound::bigint + 1
),
waiting as materialized (
    select queue from tenure.job where role = 'waiting' limit :bound::bigint + 1
),
counted as (
    select pair.queue, ready.number as ready, delayed.number as delayed, 0 as waiting, 0 as held, oldest.at as oldest
    from clock, pair
    cross join lateral (
        select count(*) as number from (
            select from generate_series(0, 9) as lane
            cross join lateral (
                select from tenure.job
                where role = 'ready' and contract = pair.contract and queue = pair.queue and priority = lane
                  and coalesce(due_at, '-infinity') <= t
                limit :bound::bigint + 1
            ) as one
            limit :bound::bigint + 1
        ) as counting
    ) as ready
    cross join lateral (
        select count(*) as number from (
            select from generate_series(0, 9) as lane
            cross join lateral (
                select from tenure.job
                where role = 'ready' and contract = pair.contract and queue = pair.queue and priority = lane
                  and coalesce(due_at, '-infinity') > t
                limit :bound::bigint + 1
            ) as one
            limit :bound::bigint + 1
        ) as counting
    ) as delayed
    cross join lateral (
        select min(first.at) as at from generate_series(0, 9) as lane
        cross join lateral (
            select coalesce(due_at, created_at) as at from tenure.job
            where role = 'ready' and contract = pair.contract and queue = pair.queue and priority = lane
              and coalesce(due_at, '-infinity') <= t
            order by coalesce(due_at, '-infinity'), id
            limit 1
        ) as first
    ) as oldest
    union all
    select queue, 0, 0, 0, count(*), null from held group by queue
    union all
    select queue, 0, 0, count(*), 0, null from waiting group by queue
    union all
    select name, 0, 0, 0, 0, null from tenure.queue where paused_at is not null
)
select counted.queue, sum(ready)::bigint, sum(delayed)::bigint, sum(waiting)::bigint, sum(held)::bigint, min(oldest),
       max(ready) > :bound::bigint as more_ready, max(delayed) > :bound::bigint as more_delayed,
       (select count(*) from waiting) > :bound::bigint as more_waiting,
       (select count(*) from held) > :bound::bigint as more_held,
       known.paused_at, known.paused_by, known.reason, t
from clock, counted left join tenure.queue as known on known.name = counted.queue and known.paused_at is not null
group by counted.queue, known.paused_at, known.paused_by, known.reason, t
order by counted.queue
limit :queues::bigint
