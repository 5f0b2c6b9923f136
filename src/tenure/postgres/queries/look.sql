-- What stands around this job, live or finished: its holder's beats, who made it, what goes before it, what came of it?
--
-- The due jobs before it are counted lane by lane, as a claim would take them, and no further than a bound: a million
-- others must not make one slow to look at. The same bound holds for those of its queue that are held.
with job as materialized (
    select id, contract, queue, priority, role, due_at, last_heartbeat_at, heartbeat_ms, pending, created_by, progress
    from tenure.job
    where id = :id::bigint
    union all
    select id, contract, queue, priority, role, due_at, last_heartbeat_at, heartbeat_ms, pending, created_by, progress
    from tenure.job_done
    where id = :id::bigint
),
clock as materialized (
    select clock_timestamp() as t
),
ahead as (
    select count(*) as number from (
        select from clock, job
        cross join lateral generate_series(0, job.priority) as lane
        cross join lateral (
            select from tenure.job as other
            where other.role = 'ready' and other.contract = job.contract and other.queue = job.queue
              and other.priority = lane
              -- All that is due in the lanes before; in its own lane what is due earlier, or as early and older.
              and (coalesce(other.due_at, '-infinity'), other.id)
                  < (case when lane < job.priority then t else coalesce(job.due_at, '-infinity') end,
                     case when lane < job.priority then 9223372036854775807 else job.id end)
            limit :bound::bigint
        ) as due
        where job.role = 'ready' and coalesce(job.due_at, '-infinity') <= t
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
       (select rerun.job_id from tenure.rerun where as_job_id = job.id) as ran_before
from clock, ahead, held, job left join tenure.queue on queue.name = job.queue and paused_at is not null
