-- Read what metrics show beside counts: workers, their slots, wake-ups that wait, and how far the fold is behind.
with clock as materialized (
    select clock_timestamp() as t
)
select (select count(*) from tenure.worker, clock where last_seen_at > t - interval '60 seconds'),
       (select coalesce(sum(slots), 0) from tenure.worker, clock where last_seen_at > t - interval '60 seconds')::bigint,
       (select coalesce(sum(busy), 0) from tenure.worker, clock where last_seen_at > t - interval '60 seconds')::bigint,
       greatest(0, date_part('epoch', t - (
           select publish_at from tenure.outbox where published_at is null and publish_at <= t order by publish_at, id limit 1))),
       greatest(0, date_part('epoch', t - (select min(at) from tenure.tally))),
       array(select contract || chr(31) || type || chr(31) || tenant_id from tenure.tally_group
             group by contract, type, tenant_id order by min(id) limit :groups::bigint)
from clock
