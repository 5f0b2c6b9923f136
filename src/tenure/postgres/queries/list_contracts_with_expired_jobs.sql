-- List the contracts, with their versions, that have jobs which expired before they began; empty most of the time.
select distinct contract, version
from (
    select contract, version from tenure.job
    where expires_at <= clock_timestamp() and role in ('ready', 'waiting') and claims = 0
    order by expires_at
    limit :limit::bigint
) as oldest
