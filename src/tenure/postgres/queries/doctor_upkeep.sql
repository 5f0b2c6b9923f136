-- Tell what upkeep has not done yet: for each contract the oldest expired lease, job at a commit point, and due wait.
with clock as materialized (
    select clock_timestamp() as t
),
machine as materialized (
    select * from unnest(
        :contract::text[], :version::text[], :missed::integer[], :heartbeat_ms::integer[], :reclaims::boolean[],
        :extra::integer[], :promoted::text[]
    ) as m (contract, version, missed, heartbeat_ms, reclaims, extra, promoted)
)
select machine.contract, held.expired, extract(epoch from t - held.expired_at)::double precision as expired_s, held.expired_id,
       extract(epoch from t - held.settling_at)::double precision as settling_s, held.settling_id,
       extract(epoch from t - due.due_at)::double precision as due_s, due.id as due_id
from clock, machine
cross join lateral (
    select count(*) filter (where is_expired) as expired, min(lease_expires_at) filter (where is_expired) as expired_at,
           min(id) filter (where is_expired) as expired_id,
           min(updated_at) filter (where role = 'settling') as settling_at, min(id) filter (where role = 'settling') as settling_id
    from tenure.job
    cross join lateral (
        -- As in find_expired.sql.
        select role <> 'settling'
               and (tenure.lease_expired(lease_expires_at, clock.t)
                    or tenure.heartbeats_missed(
                        last_heartbeat_at, coalesce(job.heartbeat_ms, machine.heartbeat_ms), machine.missed, clock.t))
               and not (machine.reclaims and cancel_requested_at is null
                        and tenure.has_budget(claims, max_attempts, raises, machine.extra)) as is_expired
    ) as judged
    where contract = machine.contract and version = machine.version and role in ('leased', 'active', 'settling')
) as held
left join lateral (
    select due_at, id from tenure.job
    where contract = machine.contract and version = machine.version and role = 'waiting' and due_at <= clock.t
      and machine.promoted <> '{}' and state = any (machine.promoted::text[])
    order by due_at, id
    limit 1
) as due on true
where held.expired > 0 or held.settling_at is not null or due.id is not null
order by machine.contract
