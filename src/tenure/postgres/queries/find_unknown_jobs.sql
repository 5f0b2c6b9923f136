-- Find jobs of these types, contracts, versions and queues that have been due for :waited_s seconds, oldest first.
--
-- Each lane (contract, queue, priority, type, version) is read in the order of its index, and no further than the limit.
with clock as materialized (
    select clock_timestamp() as t, clock_timestamp() - :waited_s::double precision * interval '1 second' as before
)
select found.id, wanted.contract, wanted.type
from clock, unnest(:contracts::text[], :versions::text[], :queues::text[], :types::text[]) as wanted (contract, version, queue, type)
cross join generate_series(0, 9) as lane (priority)
cross join lateral (
    select id, greatest(due_at, created_at) as since from tenure.job
    where role = 'ready' and quarantined_at is null and contract = wanted.contract and queue = wanted.queue
      and priority = lane.priority and type collate "C" = wanted.type and version collate "C" = wanted.version
      and coalesce(due_at, '-infinity') < clock.before and created_at < clock.before
    order by coalesce(due_at, '-infinity'), id
    limit :limit::bigint
) as found
order by found.since, found.id
limit :limit::bigint
