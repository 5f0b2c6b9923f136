-- List the generations that a job writes.
select dataset.name, dataset.id, dataset.uuid, generation.id, generation.number, generation.dropped_at is not null as is_dropped
from tenure.dataset_pin as pin
join tenure.dataset on dataset.id = pin.dataset_id
join tenure.dataset_generation as generation on generation.id = pin.generation_id
where pin.job_id = :job_id::bigint and pin.writes
