-- List those of these contracts, with their versions, that have jobs which expired before they began; most often none.
select distinct contract, version
from (
    select contract, version from tenure.job
    where expires_at <= clock_timestamp() and role in ('ready', 'waiting') and claims = 0
      and (contract, version) in (select * from unnest(:contracts::text[], :versions::text[]))
    order by expires_at
    limit :limit::bigint
) as oldest
