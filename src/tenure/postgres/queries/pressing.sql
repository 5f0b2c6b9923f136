-- What does time ask for, and of which contracts? What is the time, and has the hot table moved?
--
-- One question a second instead of three for each contract; it walks the small sets alone. What it finds is only a hint:
-- the verbs look again, under the rows' locks.
with clock as materialized (
    select clock_timestamp() as t
),
machine as materialized (
    select * from unnest(
        :contracts::text[], :versions::text[], :missed::integer[], :heartbeats_ms::integer[], :reclaiming::boolean[],
        :extras::integer[], :leases_ms::integer[]
    ) as m (contract, version, missed, heartbeat_ms, reclaims, extra, lease_ms)
),
held as materialized (
    select machine.contract, found.*
    from clock, machine, lateral (
        select bool_or(role = 'settling') as settles,
               -- As expired.sql has it.
               bool_or(role <> 'settling'
                       and (lease_expires_at < clock.t
                            or last_heartbeat_at + machine.missed * coalesce(job.heartbeat_ms, machine.heartbeat_ms)
                               * interval '1 millisecond' < clock.t)
                       and not (machine.reclaims and cancel_requested_at is null
                                and claims < greatest(1, max_attempts + machine.extra) + raises)) as expired,
               min(coalesce(job.lease_ms, machine.lease_ms)) as lease_ms
        from tenure.job
        where contract = machine.contract and version = machine.version and role in ('leased', 'active', 'settling')
    ) as found
)
select clock.t as at,
       array(select contract from held where settles) as settle,
       array(select contract from held where expired) as reap,
       array(select contract from machine where exists (
           select from tenure.job
           where contract = machine.contract and version = machine.version and role = 'waiting' and due_at <= clock.t
       )) as promote,
       least((select min(lease_ms) from held), (select min(lease_ms) from machine)) / 1000.0::double precision as lease_sec,
       (select count(*) from tenure.contract) as registered,
       pg_stat_get_dead_tuples('tenure.job'::regclass) + pg_stat_get_dead_tuples('tenure.claim'::regclass) as dead,
       pg_stat_get_tuples_updated('tenure.job'::regclass) + pg_stat_get_tuples_deleted('tenure.job'::regclass)
           + pg_stat_get_tuples_deleted('tenure.claim'::regclass) as changed,
       extract(epoch from clock.t - greatest(
           pg_stat_get_last_vacuum_time('tenure.job'::regclass), pg_stat_get_last_autovacuum_time('tenure.job'::regclass)
       ))::double precision as vacuumed_ago
from clock
