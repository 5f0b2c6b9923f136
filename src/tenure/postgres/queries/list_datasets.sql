-- List datasets: one of a tenant, or a page by tenant and name.
select dataset.id, dataset.uuid, dataset.name, dataset.tenant_id, current.number as current,
       (select number from tenure.dataset_generation where dataset_id = dataset.id order by number desc limit 1) as newest,
       dataset.keep, dataset.created_at, dataset.created_by
from (
    select * from tenure.dataset
    where (:tenant_id::text is null or tenant_id = :tenant_id::text) and (:name::text is null or name = :name::text)
      and (:after::bigint is null
           or (tenant_id, name) > (select tenant_id, name from tenure.dataset where id = :after::bigint))
    order by tenant_id, name
    limit :limit::bigint
) as dataset
join tenure.dataset_generation as current on current.id = any (array[dataset.current_id])
order by dataset.tenant_id, dataset.name
