-- Read those of these jobs that these claim keys still hold.
select id, contract, version, state, role, queue, type, tenant_id, priority, claims, raises, counter,
       max_attempts, payload::text, lease_owner, lease_expires_at, due_at, created_at, updated_at, started_at,
       finished_at, cancel_requested_at, trace_id, correlation_id, idempotency_key, origin_letter, last_error::text,
       result::text, checkpoint::text, pending::text, blocked_at, lease_token
from tenure.job
where role in ('leased', 'active', 'settling') and contract = :contract::text and lease_token = any (:claim_keys::uuid[])
  and id = any (:ids::bigint[])
  -- Where expiry forfeits a lease, repeating the claim does not win it again.
  and not (:forfeits::boolean and (
      tenure.lease_expired(lease_expires_at, clock_timestamp())
      or tenure.heartbeats_missed(
          last_heartbeat_at, coalesce(heartbeat_ms, :heartbeat_ms::integer), :missed::integer, clock_timestamp())))
order by id
