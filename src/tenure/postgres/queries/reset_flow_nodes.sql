-- Let these nodes of a locked flow wait or run again. A node with a new job id gets a new job.
update tenure.flow_node
set state = again.state, open = again.open, job_id = again.job_id,
    started_at = case when again.state = flow_node.state then flow_node.started_at
                      when again.state = 'started' then clock_timestamp() end,
    finished_at = null, job_state = null, result = null, error = null
from unnest(:ids::bigint[], :states::text[], :opens::integer[], :job_ids::bigint[]) as again (id, state, open, job_id)
where flow_node.id = any (array[again.id])
