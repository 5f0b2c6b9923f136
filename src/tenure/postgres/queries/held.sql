-- Which jobs do these claims still hold?
select id, contract, version, state, role, queue, type, tenant_id, priority, claims, raises, counter,
       max_attempts, payload::text, lease_owner, lease_expires_at, due_at, created_at, updated_at, started_at,
       finished_at, cancel_requested_at, trace_id, correlation_id, idempotency_key, origin_letter, last_error::text,
       result::text, checkpoint::text, pending::text, lease_token
from tenure.job
where role in ('leased', 'active', 'settling') and contract = :contract::text and lease_token = any (:claim_keys::uuid[])
  --named: and id = any (:ids::bigint[])
  -- A claim whose lease ran out is not won again by repeating it, where expiry forfeits.
  and not (:forfeits::boolean and (
      lease_expires_at < clock_timestamp()
      or coalesce(last_heartbeat_at + :missed::integer * coalesce(heartbeat_ms, :heartbeat_ms::integer)
                  * interval '1 millisecond' < clock_timestamp(), false)))
order by id
