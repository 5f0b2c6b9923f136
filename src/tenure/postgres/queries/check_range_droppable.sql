-- Tell whether every transaction has ended that could still insert a job into this id range, and whether a live job
-- or a node of a flow that has not ended is in it.
select leaving < pg_snapshot_xmin(pg_current_snapshot()) as quiet,
       exists (select from tenure.job where job.id >= range.low and job.id < range.high)
           or exists (
               select from tenure.flow
               where ended_at is null and first_id < range.high and last_id >= range.low and exists (
                   select from tenure.flow_node
                   where flow_node.flow_id = flow.id and job_id >= range.low and job_id < range.high)) as lives
from tenure.range
where low = :low::bigint
