-- Effects in these spans of ids that were not recorded while the claim that they name held the job: what the log knows of it.
-- A hop other than `start` ends a claim.
select effect.job_id, effect.node, effect.claims, taken.ts is not null as known
from unnest(:lows::bigint[], :highs::bigint[]) as span (low, high)
join tenure.range on range.leaving is null and range.low <= span.high and range.high > span.low
cross join lateral (
    select * from tenure.effect
    where job_id > span.low and job_id <= span.high and job_id >= range.low and job_id < range.high
    offset 0
) as effect
left join lateral (
    select event.seq, event.ts from tenure.event
    where event.job_id = effect.job_id and event.trigger in ('claim', 'reclaim') and event.claims = effect.claims
    order by event.seq
    limit 1
) as taken on true
where taken.ts is null or effect.at < taken.ts or exists (
    select from tenure.event
    where event.job_id = effect.job_id and event.seq > taken.seq and event.hop and event.trigger <> 'start'
      and event.ts < effect.at)
order by effect.job_id, effect.node
limit 1000
