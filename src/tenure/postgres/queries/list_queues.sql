-- List the queues: what is in each, and which of them are paused.
--
-- The cost does not grow with the number of jobs. The lanes (contract, queue, priority, type, version) with ready jobs are
-- found by skipping through their index from one to the next; jobs are counted lane by lane up to a bound, which is the
-- lower the more queues there are: about :rows entries are read in all. Held and waiting
-- jobs have no index by queue: at most :bound of them are read, and when there are more, every count of them is a lower
-- bound. A job whose lease ran out and that the next claim reclaims in place is ready. Jobs of all contracts count.
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
lane as materialized (
    select * from skipped limit 10 * :queues::bigint
),
pair as materialized (
    select contract, queue, array_agg(priority) as priorities, array_agg(type) as types, array_agg(version) as versions
    from lane group by contract, queue limit :queues::bigint
),
counting as materialized (
    select least(:bound::bigint, greatest(10, :rows::bigint / greatest(1, 2 * count(*)))) as most from pair
),
held as materialized (
    select job.queue, lease_expires_at,
           coalesce(reclaim.extra is not null and tenure.lease_expired(lease_expires_at, t)
                    and tenure.has_budget(claims, max_attempts, raises, reclaim.extra)
                    and cancel_requested_at is null and quarantined_at is null, false) as is_lost
    from clock, (select * from tenure.job where role in ('leased', 'active', 'settling') limit :bound::bigint + 1) as job
    left join unnest(:reclaim_contracts::text[], :reclaim_versions::text[], :reclaim_states::text[], :reclaim_extras::integer[])
        as reclaim (contract, version, state, extra)
        on (reclaim.contract, reclaim.version, reclaim.state) = (job.contract, job.version, job.state)
),
waiting as materialized (
    select queue from tenure.job where role = 'waiting' limit :bound::bigint + 1
),
quarantined as materialized (
    select queue from tenure.job where quarantined_at is not null limit :bound::bigint + 1
),
counted as (
    select pair.queue, ready.number as ready, delayed.number as delayed, 0 as waiting, 0 as held, 0 as quarantined,
           oldest.at as oldest
    from clock, pair
    cross join lateral (
        select count(*) as number from (
            select from unnest(pair.priorities, pair.types, pair.versions) as lane (priority, type, version)
            cross join lateral (
                select from tenure.job
                where role = 'ready' and quarantined_at is null and contract = pair.contract and queue = pair.queue
                  and priority = lane.priority and type collate "C" = lane.type and version collate "C" = lane.version
                  and coalesce(due_at, '-infinity') <= t
                limit (select most from counting) + 1
            ) as one
            limit (select most from counting) + 1
        ) as counted
    ) as ready
    cross join lateral (
        select count(*) as number from (
            select from unnest(pair.priorities, pair.types, pair.versions) as lane (priority, type, version)
            cross join lateral (
                select from tenure.job
                where role = 'ready' and quarantined_at is null and contract = pair.contract and queue = pair.queue
                  and priority = lane.priority and type collate "C" = lane.type and version collate "C" = lane.version
                  and coalesce(due_at, '-infinity') > t
                limit (select most from counting) + 1
            ) as one
            limit (select most from counting) + 1
        ) as counted
    ) as delayed
    cross join lateral (
        select min(first.at) as at
        from unnest(pair.priorities, pair.types, pair.versions) as lane (priority, type, version)
        cross join lateral (
            select coalesce(due_at, created_at) as at from tenure.job
            where role = 'ready' and quarantined_at is null and contract = pair.contract and queue = pair.queue
              and priority = lane.priority and type collate "C" = lane.type and version collate "C" = lane.version
              and coalesce(due_at, '-infinity') <= t
            order by coalesce(due_at, '-infinity'), id
            limit 1
        ) as first
    ) as oldest
    union all
    select queue, count(*) filter (where is_lost), 0, 0, count(*) filter (where not is_lost), 0,
           min(lease_expires_at) filter (where is_lost)
    from held group by queue
    union all
    select queue, 0, 0, count(*), 0, 0, null from waiting group by queue
    union all
    select queue, 0, 0, 0, 0, count(*), null from quarantined group by queue
    union all
    select name, 0, 0, 0, 0, 0, null from tenure.queue where paused_at is not null
)
select counted.queue, sum(ready)::bigint, sum(delayed)::bigint, sum(waiting)::bigint, sum(held)::bigint,
       sum(quarantined)::bigint, min(oldest),
       max(ready) > (select most from counting) as more_ready, max(delayed) > (select most from counting) as more_delayed,
       (select count(*) from waiting) > :bound::bigint as more_waiting,
       (select count(*) from held) > :bound::bigint as more_held,
       (select count(*) from quarantined) > :bound::bigint as more_quarantined,
       known.paused_at, known.paused_by, known.reason, t
from clock, counted left join tenure.queue as known on known.name = counted.queue and known.paused_at is not null
group by counted.queue, known.paused_at, known.paused_by, known.reason, t
order by counted.queue
limit :queues::bigint
