-- List the contract versions of the live jobs, with one job of each; the cost does not grow with the number of ready jobs.
with recursive skipped as (
    (select contract, queue, priority, type, version, id from tenure.job
     where role = 'ready' and quarantined_at is null
     order by contract, queue, priority, type collate "C", version collate "C" limit 1)
    union all
    select next.*
    from skipped
    cross join lateral (
        select contract, queue, priority, type, version, id from tenure.job
        where role = 'ready' and quarantined_at is null
          and (contract, queue, priority, type collate "C", version collate "C")
              > (skipped.contract, skipped.queue, skipped.priority, skipped.type collate "C", skipped.version collate "C")
        order by contract, queue, priority, type collate "C", version collate "C"
        limit 1
    ) as next
)
select contract, version, min(id) as job_id
from (
    select contract, version, id from (select * from skipped limit :lanes::bigint) as lane
    union all
    select contract, version, id
    from (select * from tenure.job where role in ('leased', 'active', 'settling') limit :sample::bigint) as held
    union all
    select contract, version, id from (select * from tenure.job where role = 'waiting' limit :sample::bigint) as waiting
) as live
group by contract, version
order by contract, version
