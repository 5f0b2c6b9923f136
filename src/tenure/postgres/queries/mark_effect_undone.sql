-- Mark one effect as undone: under the lease, while the failure waits for it.
with locked as materialized (
    select id, lease_owner, lease_expires_at, last_heartbeat_at, heartbeat_ms, started_at,
           contract = :contract::text and version = :version::text as is_ours, pending is not null as compensating,
           tenure.is_holder(claims, lease_token, :claims::integer, :token::uuid) as is_holder
    from tenure.job
    where id = :id::bigint
    for update
),
decided as materialized (
    select clocked.*,
           case
               when not is_ours then 'contract'
               when not is_holder or :forfeits::boolean and (
                   tenure.lease_expired(lease_expires_at, t)
                   or tenure.heartbeats_missed(
                       last_heartbeat_at, coalesce(heartbeat_ms, :heartbeat_ms::integer), :missed::integer, t)
               ) then 'stale'
               when not compensating then 'state'
           end as refusal
    from (select locked.*, clock_timestamp() as t from locked) as clocked
),
marked as (
    update tenure.effect
    set compensated_at = coalesce(effect.compensated_at, decided.t)
    from decided
    where effect.job_id = decided.id and effect.node = :node::text and effect.compensable and decided.refusal is null
    returning effect.node
)
select refusal, case when not is_holder then lease_owner end as holder, started_at as since, exists (select from marked)
from decided
