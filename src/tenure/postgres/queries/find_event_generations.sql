-- Find the generations that events of datasets are about, of one tenant; a dataset goes by its name or its UUID.
select call.n, dataset.id as dataset_id, dataset.name, generation.id as generation_id
from unnest(:names::text[], :uuids::uuid[], :numbers::bigint[]) with ordinality as call (name, uuid, number, n)
join tenure.dataset on dataset.tenant_id = :tenant_id::text and (dataset.name = call.name or dataset.uuid = call.uuid)
left join tenure.dataset_generation as generation
    on generation.dataset_id = dataset.id and generation.number = call.number
