-- Read more about this job, live or finished: heartbeats, creator, the jobs before it, reruns, quarantine, a paused queue.
--
-- The due jobs before it are counted lane by lane, in the order of a claim, up to a bound: a million other jobs must not
-- make this slow. The same bound holds for the held jobs of its queue.
with recursive job as materialized (
    select id, contract, queue, priority, role, due_at, last_heartbeat_at, heartbeat_ms, pending, created_by, progress,
           quarantined_at, quarantine_reason, expires_at
    from tenure.job
    where id = :id::bigint
    union all
    select id, contract, queue, priority, role, due_at, last_heartbeat_at, heartbeat_ms, pending, created_by, progress,
           null, null, null
    from tenure.job_done
    where id = :id::bigint
),
clock as materialized (
    select clock_timestamp() as t
),
-- The lanes before it and its own, found by skipping through the index.
skipped as (
    (select job.contract, job.queue, job.priority as last, (-1)::smallint as priority, ''::text as type, ''::text as version
     from clock, job where job.role = 'ready' and coalesce(job.due_at, '-infinity') <= t)
    union all
    select skipped.contract, skipped.queue, skipped.last, next.*
    from skipped
    cross join lateral (
        select other.priority, other.type, other.version from tenure.job as other
        where other.role = 'ready' and other.quarantined_at is null and other.contract = skipped.contract
          and other.queue = skipped.queue and other.priority <= skipped.last
          and (other.priority, other.type collate "C", other.version collate "C")
              > (skipped.priority, skipped.type collate "C", skipped.version collate "C")
        order by other.priority, other.type collate "C", other.version collate "C"
        limit 1
    ) as next
),
lane as materialized (
    select * from skipped limit :bound::bigint
),
ahead as (
    select count(*) as number from (
        select from clock, job, lane
        cross join lateral (
            select from tenure.job as other
            where other.role = 'ready' and other.quarantined_at is null and other.contract = lane.contract
              and other.queue = lane.queue and other.priority = lane.priority and other.type collate "C" = lane.type
              and other.version collate "C" = lane.version
              -- At the priorities before: all due jobs. At its own: those due earlier, and older ones due at the same time.
              and (coalesce(other.due_at, '-infinity'), other.id)
                  < (case when lane.priority < job.priority then t else coalesce(job.due_at, '-infinity') end,
                     case when lane.priority < job.priority then 9223372036854775807 else job.id end)
            limit :bound::bigint
        ) as due
        limit :bound::bigint
    ) as before
),
held as (
    select count(*) as number from (
        select from clock, job
        cross join lateral (
            select from tenure.job as other
            where other.role in ('leased', 'active', 'settling') and other.role <> 'settling'
              and other.contract = job.contract and other.queue = job.queue and other.lease_expires_at >= t
            limit :bound::bigint
        ) as taken
        where job.role = 'ready'
    ) as holding
)
select t, last_heartbeat_at, heartbeat_ms, role <> 'done' and pending is not null as compensating, ahead.number,
       held.number, created_by, progress::text, paused_at, paused_by, reason,
       (select as_job_id from tenure.rerun where rerun.job_id = job.id) as again,
       (select rerun.job_id from tenure.rerun where as_job_id = job.id) as ran_before,
       quarantined_at, quarantine_reason, expires_at
from clock, ahead, held, job left join tenure.queue on queue.name = job.queue and paused_at is not null
