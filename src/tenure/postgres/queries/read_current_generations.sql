-- Read the current generations of these datasets of a tenant, all in one snapshot.
select generation.id, dataset.name, dataset.uuid, dataset.tenant_id, generation.number, true as is_current,
       generation.shape::text, generation.flow_id, generation.created_at, generation.created_by, generation.current_since,
       generation.rolled_back_at, generation.dropped_at
from tenure.dataset
join tenure.dataset_generation as generation on generation.id = dataset.current_id
where dataset.tenant_id = :tenant_id::text and dataset.name = any (:names::text[])
