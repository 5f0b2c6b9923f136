-- Find workers that did not stop and are not seen: those that are still listed, and those that were taken from the list.
--
-- A remote worker with no free slot claims nothing, so it is seen only by its heartbeats, which renew its leases.
select name, host, pid, queues, busy, last_seen_at,
       extract(epoch from clock_timestamp() - last_seen_at)::double precision as silent_s, true as is_listed
from tenure.worker
where last_seen_at < clock_timestamp() - :silent_s::double precision * interval '1 second'
  and not (through is not null and name in (
      select lease_owner from tenure.job
      where role in ('leased', 'active') and lease_expires_at >= clock_timestamp()))
union all
(select name, host, pid, queues, busy, last_seen_at,
        extract(epoch from clock_timestamp() - last_seen_at)::double precision, false
 from tenure.past_worker
 where ending = 'lost' and gone_at >= clock_timestamp() - :since_s::double precision * interval '1 second'
 order by gone_at desc
 limit :limit::bigint)
order by last_seen_at desc
limit :limit::bigint
