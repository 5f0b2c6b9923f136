-- This effect is undone: under the lease, while the failure waits for it.
with locked as materialized (
    select id, lease_owner, lease_expires_at, last_heartbeat_at, heartbeat_ms, started_at,
           contract = :contract::text and version = :version::text as ours, pending is not null as compensating,
           (claims, lease_token) is not distinct from (:claims::integer, :token::uuid) as proven
    from tenure.job
    where id = :id::bigint
    for update
),
told as materialized (
    select clocked.*,
           case
               when not ours then 'contract'
               when not proven or :forfeits::boolean and (
                   coalesce(lease_expires_at < t, false)
                   or coalesce(last_heartbeat_at + :missed::integer * coalesce(heartbeat_ms, :heartbeat_ms::integer)
                               * interval '1 millisecond' < t, false)
               ) then 'stale'
               when not compensating then 'state'
           end as refusal
    from (select locked.*, clock_timestamp() as t from locked) as clocked
),
marked as (
    update tenure.effect
    set compensated_at = coalesce(effect.compensated_at, told.t)
    from told
    where effect.job_id = told.id and effect.node = :node::text and effect.compensable and told.refusal is null
    returning effect.node
)
select refusal, case when not proven then lease_owner end as holder, started_at as since, exists (select from marked)
from told
