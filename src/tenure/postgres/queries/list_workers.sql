-- List live workers, busy or idle, and other holders of jobs: how many jobs each, since when, until when, the ten oldest holds.
with holder as materialized (
    select lease_owner as name, count(*) as held, min(started_at) as since, max(last_heartbeat_at) as beat,
           max(lease_expires_at) as expires, (array_agg(id order by started_at, id))[:10] as jobs
    from tenure.job
    where role in ('leased', 'active') and lease_owner is not null
    group by lease_owner
)
select name, coalesce(held, 0), since, beat, expires, host, pid, version, application, queues, contracts, types, slots,
       busy, worker.started_at, worker.last_seen_at, through, release, loop_lag_s,
       extract(epoch from clock_timestamp() - worker.last_seen_at)::double precision as silent_s, coalesce(jobs, '{}')
from tenure.live_worker as worker full join holder using (name)
order by name
limit :limit::bigint
