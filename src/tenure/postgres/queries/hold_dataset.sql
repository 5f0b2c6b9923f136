-- Read which generation of a dataset is current; no cutover changes it before this transaction ends.
select dataset.tenant_id, dataset.name, dataset.uuid, dataset.current_id,
       (select number from tenure.dataset_generation where id = dataset.current_id) as number
from tenure.dataset
where id = :id::bigint
for share
