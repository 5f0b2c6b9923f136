-- Lock generations that their datasets do not keep: they are older than the former ones that stay. Those that were never
-- current, or were rolled back, do not count as former ones.
select generation.id
from (
    select dataset.id as dataset_id,
           case when dataset.keep = 0 then current.number
                else (select number from tenure.dataset_generation
                      where dataset_id = dataset.id and number < current.number and current_since is not null
                        and rolled_back_at is null and dropped_at is null
                      order by number desc
                      offset dataset.keep - 1
                      limit 1) end as oldest
    from tenure.dataset join tenure.dataset_generation as current on current.id = dataset.current_id
    where dataset.keep is not null
) as kept
join tenure.dataset_generation as generation on generation.dataset_id = kept.dataset_id
where generation.number < kept.oldest and generation.dropped_at is null and generation.id > :after::bigint
order by generation.id
limit :limit::bigint
for update of generation skip locked
