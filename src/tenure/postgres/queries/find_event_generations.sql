-- Find the generations that events of datasets are about, of one tenant; a dataset goes by its name or its UUID.
with call as materialized (
    select name, uuid, number, n
    from unnest(:names::text[], :uuids::uuid[], :numbers::bigint[]) with ordinality as call (name, uuid, number, n)
),
named as (
    select call.n, call.number, dataset.id, dataset.name
    from call join tenure.dataset on dataset.tenant_id = :tenant_id::text and dataset.name = call.name
    union all
    select call.n, call.number, dataset.id, dataset.name
    from call join tenure.dataset on dataset.uuid = call.uuid and dataset.tenant_id = :tenant_id::text
)
select named.n, named.id as dataset_id, named.name, generation.id as generation_id
from named
left join tenure.dataset_generation as generation on generation.dataset_id = named.id and generation.number = named.number
