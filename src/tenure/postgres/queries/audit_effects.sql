-- Find effects of jobs between :after and :before that were not recorded while the claim that they name held the job, and
-- what the log knows of that claim. A hop other than `start` ends a claim.
select effect.job_id, effect.node, effect.claims, taken.ts is not null as known
from (
    select * from tenure.effect
    where job_id > :after::bigint and job_id < :before::bigint and (:ids::bigint[] is null or job_id = any (:ids::bigint[]))
      and exists (select from tenure.range where leaving is null and job_id >= low and job_id < high)
    offset 0
) as effect
left join lateral (
    select event.seq, event.ts from tenure.event
    where event.job_id = effect.job_id and event.trigger in ('claim', 'reclaim') and event.claims = effect.claims
      and event.job_id > :after::bigint and event.job_id < :before::bigint
    order by event.seq
    limit 1
) as taken on true
where taken.ts is null or effect.at < taken.ts or exists (
    select from tenure.event
    where event.job_id = effect.job_id and event.seq > taken.seq and event.hop and event.trigger <> 'start'
      and event.ts < effect.at and event.job_id > :after::bigint and event.job_id < :before::bigint)
order by effect.job_id, effect.node
limit 1000
