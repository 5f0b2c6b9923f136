-- List what the completion of a job added to datasets, in its order.
select output.n, output.kind, dataset.name, dataset.uuid, generation.number, output.scope, output.location, output.cursor,
       output.row_count, output.given, output.at
from tenure.dataset_output as output
join tenure.dataset_generation as generation on generation.id = output.generation_id
join tenure.dataset on dataset.id = generation.dataset_id
where output.job_id = :job_id::bigint
order by output.n
