-- Whose lease has run out, or whose holder missed its beats? Skip locked rows: somebody is moving them right now.
select id
from tenure.job
where contract = :contract::text and version = :version::text and role in ('leased', 'active', 'settling') and role <> 'settling'
  and (lease_expires_at < clock_timestamp()
       or last_heartbeat_at + :missed::integer * coalesce(heartbeat_ms, :heartbeat_ms::integer) * interval '1 millisecond'
          < clock_timestamp())
  and (:queues::text[] is null or queue = any (:queues::text[])) and (:ids::bigint[] is null or id = any (:ids::bigint[]))
  -- Where a claim reclaims in place, only what can no longer be claimed is left to us.
  and not (:reclaims::boolean and cancel_requested_at is null
           and claims < greatest(1, max_attempts + :extra::integer) + raises)
  -- A clock that jumped is not believed: not beyond where its last reader trusts it, and then not before each holder has
  -- had the time of a lease to beat again.
  and (:until::timestamptz is null or clock_timestamp() < :until::timestamptz)
  and (:jumped::timestamptz is null
       or :jumped::timestamptz + coalesce(lease_ms, :default_lease_ms::integer) * interval '1 millisecond' < clock_timestamp())
limit :limit::bigint
for update skip locked
