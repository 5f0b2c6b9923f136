-- Lock jobs whose lease has run out or whose holder missed its heartbeats. Skips locked rows: another call is moving them.
select id
from tenure.job
where contract = :contract::text and version = :version::text and role in ('leased', 'active', 'settling') and role <> 'settling'
  and (tenure.lease_expired(lease_expires_at, clock_timestamp())
       or tenure.heartbeats_missed(
           last_heartbeat_at, coalesce(heartbeat_ms, :heartbeat_ms::integer), :missed::integer, clock_timestamp()))
  and (:queues::text[] is null or queue = any (:queues::text[])) and (:ids::bigint[] is null or id = any (:ids::bigint[]))
  and (:units::bigint[] is null or id / 1048576 = any (:units::bigint[]))
  -- Where a claim reclaims in place, upkeep takes only jobs that can no longer be claimed.
  and not (:reclaims::boolean and cancel_requested_at is null
           and tenure.has_budget(claims, max_attempts, raises, :extra::integer))
  -- After a jump of the clock: take nothing beyond the time that the caller trusts, and then nothing before each holder
  -- has had the time of a lease to send a heartbeat.
  and (:until::timestamptz is null or clock_timestamp() < :until::timestamptz)
  and (:jumped::timestamptz is null
       or :jumped::timestamptz + coalesce(lease_ms, :default_lease_ms::integer) * interval '1 millisecond' < clock_timestamp())
limit :limit::bigint
for update skip locked
