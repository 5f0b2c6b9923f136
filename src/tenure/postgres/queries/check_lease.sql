-- Tell whether this attempt holds its job and runs, or why it does not. Locks the job until the transaction ends.
with locked as materialized (
    select state, role, lease_owner, lease_expires_at, last_heartbeat_at, heartbeat_ms, started_at,
           contract = :contract::text and version = :version::text as is_ours,
           tenure.is_holder(claims, coalesce(lease_token, finisher), :claims::integer, :token::uuid) as is_holder
    from tenure.job
    where id = :id::bigint
    for update
)
select case
           when not is_ours then 'contract'
           when not is_holder or :forfeits::boolean and (
               tenure.lease_expired(lease_expires_at, t)
               or tenure.heartbeats_missed(
                   last_heartbeat_at, coalesce(heartbeat_ms, :heartbeat_ms::integer), :missed::integer, t)
           ) then 'stale'
           when role not in ('leased', 'active') then 'state'
       end as refusal,
       state, case when not is_holder then lease_owner end as holder, started_at as since
from (select locked.*, clock_timestamp() as t from locked) as clocked
