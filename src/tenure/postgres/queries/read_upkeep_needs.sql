-- Tell which contracts need upkeep: settling, reaping, promoting; the time, the next fire, whether flows are to be advanced,
-- events to be routed and rollbacks to be finished, the activity of the hot table.
--
-- One statement a second instead of three for each contract; it reads only the small sets. Its answer is only a hint: the
-- verbs test again, under the rows' locks.
with clock as materialized (
    select clock_timestamp() as t
),
machine as materialized (
    select * from unnest(
        :contract::text[], :version::text[], :missed::integer[], :heartbeat_ms::integer[], :reclaims::boolean[],
        :extra::integer[], :default_lease_ms::integer[], :promoted::text[]
    ) as m (contract, version, missed, heartbeat_ms, reclaims, extra, lease_ms, promoted)
),
held as materialized (
    select machine.contract, found.*
    from clock, machine, lateral (
        select bool_or(role = 'settling') as settles,
               -- As in find_expired.sql.
               bool_or(role <> 'settling'
                       and (tenure.lease_expired(lease_expires_at, clock.t)
                            or tenure.heartbeats_missed(
                                last_heartbeat_at, coalesce(job.heartbeat_ms, machine.heartbeat_ms), machine.missed, clock.t))
                       and not (machine.reclaims and cancel_requested_at is null
                                and tenure.has_budget(claims, max_attempts, raises, machine.extra))) as expired,
               min(coalesce(job.lease_ms, machine.lease_ms)) as lease_ms
        from tenure.job
        where contract = machine.contract and version = machine.version and role in ('leased', 'active', 'settling')
    ) as found
)
select clock.t as at,
       array(select contract from held where settles) as settle,
       array(select contract from held where expired) as reap,
       -- In the states that are not named, a person decides, whatever the time.
       array(select contract from machine where promoted <> '{}' and exists (
           select from tenure.job
           where contract = machine.contract and version = machine.version and role = 'waiting' and due_at <= clock.t
             and state = any (machine.promoted::text[])
       )) as promote,
       (select next_at from tenure.schedule where paused_at is null and withdrawn_at is null and next_at is not null
        order by next_at limit 1) as next_fire_at,
       exists (select from tenure.flow_end) as flows_ended,
       exists (select from tenure.dataset_delivery) as events_wait,
       exists (select from tenure.dead_letter_change) as letters_changed,
       exists (select from tenure.operation where state = 'running' and next_at <= clock.t) as operations_wait,
       exists (select from tenure.tally) as counts_wait,
       exists (select from tenure.dataset_switch where kind = 'rollback' and finished_at is null) as rolling_back,
       least((select min(lease_ms) from held), (select min(lease_ms) from machine)) / 1000.0::double precision as lease_sec,
       (select count(*) from tenure.contract) as registered,
       pg_stat_get_dead_tuples('tenure.job'::regclass) + pg_stat_get_dead_tuples('tenure.claim'::regclass) as dead,
       pg_stat_get_tuples_updated('tenure.job'::regclass) + pg_stat_get_tuples_deleted('tenure.job'::regclass)
           + pg_stat_get_tuples_deleted('tenure.claim'::regclass) as changed,
       extract(epoch from clock.t - greatest(
           pg_stat_get_last_vacuum_time('tenure.job'::regclass), pg_stat_get_last_autovacuum_time('tenure.job'::regclass)
       ))::double precision as vacuumed_ago
from clock
