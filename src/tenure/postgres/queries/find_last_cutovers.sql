-- Find the last cutover of each of these datasets that no rollback has undone.
select dataset.id, dataset.name, last.id
from tenure.dataset
left join lateral (
    select switch.id
    from tenure.dataset_switched as switched
    join tenure.dataset_switch as switch on switch.id = switched.switch_id
    where switched.dataset_id = dataset.id and switch.kind = 'cutover' and switch.undone_by is null
    order by switched.switch_id desc
    limit 1
) as last on true
where dataset.tenant_id = :tenant_id::text and dataset.name = any (:names::text[])
