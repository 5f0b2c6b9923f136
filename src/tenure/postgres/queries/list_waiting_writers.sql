-- List jobs that wait to write to the generations that a rollback left, by id.
select distinct pin.job_id as id
from tenure.dataset_switched as switched
join tenure.dataset_pin as pin on pin.generation_id = switched.before_id and pin.writes and pin.job_id > :after::bigint
join tenure.job on job.id = pin.job_id and job.role in ('ready', 'waiting')
where switched.switch_id = :id::bigint
order by id
limit :limit::bigint
