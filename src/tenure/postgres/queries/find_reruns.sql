-- Find which of these jobs were run again, each as which job, directly or through its dead letter, whose id is added.
select call.id, coalesce(rerun.as_job_id, letter.requeued_as), letter.id
from unnest(:ids::bigint[]) as call (id)
-- The offsets keep the planner from reading all rows instead of looking up each of these.
left join lateral (select as_job_id from tenure.rerun where job_id = call.id offset 0) as rerun on true
left join lateral (
    select id, requeued_as from tenure.dead_letter where job_id = call.id and requeued_as is not null offset 0
) as letter on true
where rerun.as_job_id is not null or letter.requeued_as is not null
