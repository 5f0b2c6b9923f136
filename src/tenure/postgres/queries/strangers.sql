-- Which due jobs are of types that this caller does not know, how long do they wait, and does somebody work on others of
-- their type right now? Looks at the first of each queue.
with worked_on as materialized (
    select distinct contract, queue, type from tenure.job
    where contract = any (:contracts::text[]) and role in ('leased', 'active', 'settling')
)
select id, type, contract, extract(epoch from clock_timestamp() - coalesce(greatest(due_at, created_at), created_at)),
       (contract, first.queue, type) in (select * from worked_on)
from unnest(:contracts::text[]) as name, unnest(:queues::text[]) as lane (queue)
cross join lateral (
    select * from tenure.job
    where contract = name and job.queue = lane.queue and role = 'ready' and coalesce(due_at, '-infinity') <= clock_timestamp()
    limit 1000
) as first
where type <> all (:known::text[]) and lane.queue not in (select queue.name from tenure.queue where paused_at is not null)
limit 100
