-- List generations of a dataset, the newest first: all that fit, or one of them.
select generation.id, dataset.name, dataset.uuid, dataset.tenant_id, generation.number,
       generation.id = dataset.current_id as is_current, generation.shape::text, generation.flow_id, generation.created_at,
       generation.created_by, generation.current_since, generation.rolled_back_at, generation.dropped_at
from tenure.dataset
join tenure.dataset_generation as generation on generation.dataset_id = dataset.id
where dataset.tenant_id = :tenant_id::text and dataset.name = :name::text
  and (:number::bigint is null or generation.number = :number::bigint)
  and (:before::bigint is null or generation.number < :before::bigint)
order by generation.number desc
limit :limit::bigint
