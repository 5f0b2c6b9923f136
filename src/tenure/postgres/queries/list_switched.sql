-- List the datasets of a cutover or a rollback, with the generations before and after it.
select dataset.id, dataset.name, switched.before_id, before.number, switched.after_id, after.number
from tenure.dataset_switched as switched
join tenure.dataset on dataset.id = switched.dataset_id
join tenure.dataset_generation as before on before.id = switched.before_id
join tenure.dataset_generation as after on after.id = switched.after_id
where switched.switch_id = :id::bigint
order by dataset.name
