-- Find due jobs that no live worker takes, by contract, queue and type: their number in a sample, and since when.
--
-- The lanes (contract, queue, priority, type, version) are found by skipping through the ready index, so the cost does not
-- grow with the number of ready jobs. A type of which a job is held is known to a worker that has no row; a lease that ran
-- out shows no such worker. Jobs that a claim would reclaim in place wait for a worker too.
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
worker as materialized (
    select name, queues, contracts, types from tenure.live_worker
),
-- One scan of the held jobs: which types are held, and which jobs may be claimed again.
held as materialized (
    select job.contract, job.queue, job.type, bool_or(lease_expires_at >= t) as is_held,
           count(*) filter (where is_lost) as lost, min(lease_expires_at) filter (where is_lost) as since
    from clock, tenure.job
    left join unnest(:reclaim_contracts::text[], :reclaim_versions::text[], :reclaim_states::text[], :reclaim_extras::integer[])
        as reclaim (contract, version, state, extra)
        on (reclaim.contract, reclaim.version, reclaim.state) = (job.contract, job.version, job.state)
    cross join lateral (
        select reclaim.extra is not null and tenure.lease_expired(lease_expires_at, t)
               and tenure.has_budget(claims, max_attempts, raises, reclaim.extra)
               and cancel_requested_at is null and quarantined_at is null as is_lost
    ) as judged
    where role in ('leased', 'active', 'settling')
    group by job.contract, job.queue, job.type
),
lane as (
    select *, 0 as lost, null::timestamptz as since from (select * from skipped limit 10 * :queues::bigint) as ready
    union all
    select contract, queue, null, type, null, lost, since from held where lost > 0
),
unserved as materialized (
    select lane.* from lane
    where lane.queue not in (select queue.name from tenure.queue where paused_at is not null)
      and not exists (
          select from worker
          where lane.contract = any (worker.contracts) and lane.queue = any (worker.queues)
            and (worker.types is null or lane.type = any (worker.types)))
      and not exists (
          select from held
          where held.is_held and held.contract = lane.contract and held.queue = lane.queue and held.type = lane.type)
),
first as materialized (
    select unserved.contract, unserved.queue, unserved.type, sum(due.jobs)::bigint as jobs, min(due.at) as since
    from clock, unserved
    cross join lateral (
        (select 1 as jobs, coalesce(due_at, created_at) as at from tenure.job
         where role = 'ready' and quarantined_at is null and contract = unserved.contract and queue = unserved.queue
           and priority = unserved.priority and type collate "C" = unserved.type and version collate "C" = unserved.version
           and coalesce(due_at, '-infinity') <= t
         order by coalesce(due_at, '-infinity'), id
         limit :sample::bigint)
        union all
        select unserved.lost, unserved.since where unserved.lost > 0
    ) as due
    group by unserved.contract, unserved.queue, unserved.type
)
select contract, queue, type, jobs, since, extract(epoch from t - since)::double precision as waited_s,
       array(select name from worker where contract = any (contracts) and queue = any (queues) order by name limit 5) as takers,
       array(select name from worker order by name limit 5) as workers
from clock, first
order by contract, queue, type
limit :limit::bigint
