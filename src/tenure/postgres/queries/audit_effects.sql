-- Effects of the jobs of one page that were not recorded under a claim that their log knows.
select effect.job_id, effect.node, effect.claims
from tenure.effect
where effect.job_id >= :low::bigint and effect.job_id <= :high::bigint
  and not exists (
      select from tenure.event
      where event.job_id = effect.job_id and event.trigger in ('claim', 'reclaim') and event.claims = effect.claims
        and event.ts <= effect.at)
order by effect.job_id, effect.node
