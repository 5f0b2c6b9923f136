-- Find the generations that new jobs read and write, and keep them from being dropped until the transaction ends.
-- Without a number it is the current one or, if that has not the shape that is written, the newest one that has it and that
-- no flow writes. Which generations are current is read in one snapshot, without locks: a job never gets a mixed set.
with used as materialized (
    select call.n, dataset.id as dataset_id,
           case when call.number is not null
                then (select id from tenure.dataset_generation where dataset_id = dataset.id and number = call.number)
                when call.shape is null then dataset.current_id
                else coalesce(
                    (select id from tenure.dataset_generation where id = dataset.current_id and shape = call.shape),
                    (select id from tenure.dataset_generation
                     where dataset_id = dataset.id and shape = call.shape and flow_id is null and dropped_at is null
                       and rolled_back_at is null
                     order by number desc
                     limit 1))
           end as generation_id
    from unnest(:tenants::text[], :names::text[], :numbers::bigint[], :shapes::jsonb[])
         with ordinality as call (tenant_id, name, number, shape, n)
    left join tenure.dataset on dataset.tenant_id = call.tenant_id and dataset.name = call.name
),
locked as materialized (
    select row.*
    from (select distinct generation_id as id from used where generation_id is not null order by 1) as each
    cross join lateral (
        select id, number, rolled_back_at is not null as is_rolled_back, dropped_at is not null as is_dropped
        from tenure.dataset_generation
        where id = any (array[each.id])
        for key share
    ) as row
)
select n, used.dataset_id, used.generation_id, locked.number, locked.is_rolled_back, locked.is_dropped
from used left join locked on locked.id = used.generation_id
