-- List the generations that these jobs, or nodes of flows, read and write.
select pin.job_id, case when pin.writes then 'write' else 'read' end as mode, dataset.name, dataset.uuid, generation.number,
       generation.id
from tenure.dataset_pin as pin
join tenure.dataset on dataset.id = pin.dataset_id
join tenure.dataset_generation as generation on generation.id = pin.generation_id
where pin.job_id = any (:ids::bigint[])
order by pin.job_id, mode, dataset.name
