-- Fix the generations that these jobs, or nodes of flows, read and write; pins that are there stay.
insert into tenure.dataset_pin (job_id, dataset_id, generation_id, writes)
select pin.job_id, pin.dataset_id, pin.generation_id, pin.writes
from unnest(:jobs::bigint[], :datasets::bigint[], :generations::bigint[], :writes::boolean[])
     as pin (job_id, dataset_id, generation_id, writes)
on conflict (job_id, dataset_id, writes) do nothing
