-- Tell whether a live worker takes jobs of this contract, queue and type; name workers of that queue, and any workers.
with worker as materialized (
    select name, queues, contracts, types from tenure.live_worker
)
select exists (select from worker
               where :contract::text = any (contracts) and :queue::text = any (queues)
                 and (types is null or :type::text = any (types)))
       -- A worker without a row of its own; a lease that ran out shows none.
       or exists (select from tenure.job
                  where role in ('leased', 'active', 'settling') and contract = :contract::text and queue = :queue::text
                    and type = :type::text and lease_expires_at >= clock_timestamp()) as is_taken,
       array(select name from worker
             where :contract::text = any (contracts) and :queue::text = any (queues) order by name limit 5) as takers,
       array(select name from worker order by name limit 5) as workers
