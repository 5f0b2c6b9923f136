-- List those of these contracts, with their versions, that have jobs which expired before they began; most often none.
-- The clock is read once, in a step of its own: compared with a volatile time, the index would be read to its end.
with clock as materialized (
    select clock_timestamp() as t
)
select distinct contract, version
from clock cross join lateral (
    select contract, version from tenure.job
    where expires_at <= clock.t and role in ('ready', 'waiting') and claims = 0 and quarantined_at is null
      and (contract, version) in (select * from unnest(:contracts::text[], :versions::text[]))
    order by expires_at
    limit :limit::bigint
) as oldest
