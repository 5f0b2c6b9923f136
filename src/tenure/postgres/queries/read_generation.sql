-- Read a generation by its id.
select generation.id, dataset.name, dataset.uuid, dataset.tenant_id, generation.number,
       generation.id = dataset.current_id as is_current, generation.shape::text, generation.flow_id, generation.created_at,
       generation.created_by, generation.current_since, generation.rolled_back_at, generation.dropped_at
from tenure.dataset_generation as generation
join tenure.dataset on dataset.id = generation.dataset_id
where generation.id = :id::bigint
