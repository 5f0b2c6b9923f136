-- Which due jobs are of types that this caller does not know, and how long do they wait? Looks at the first of each queue.
select id, type, contract, extract(epoch from clock_timestamp() - coalesce(greatest(due_at, created_at), created_at))
from unnest(:contracts::text[]) as name, unnest(:queues::text[]) as lane (queue)
cross join lateral (
    select * from tenure.job
    where contract = name and job.queue = lane.queue and role = 'ready' and coalesce(due_at, '-infinity') <= clock_timestamp()
    limit 1000
) as first
where type <> all (:known::text[])
limit 100
