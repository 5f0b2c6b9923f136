-- List paused queues in which jobs wait: since when, by whom, why, and how many jobs, up to a bound.
select queue.name, extract(epoch from clock_timestamp() - paused_at)::double precision as age_s, paused_by, reason, waiting.number
from tenure.queue
cross join lateral (
    select count(*) as number from (
        select from unnest(:contracts::text[]) as known (contract)
        cross join lateral (
            select from tenure.job
            where role = 'ready' and quarantined_at is null and contract = known.contract and queue = queue.name
            limit :bound::bigint
        ) as ready
        limit :bound::bigint
    ) as counted
) as waiting
where paused_at is not null and waiting.number > 0
order by queue.name
limit :limit::bigint
