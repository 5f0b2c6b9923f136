-- Find the nodes of flows whose jobs have these ids and are not made: they wait for their parents, or will not run.
select asked.id, node.flow_id, node.name, node.state
from unnest(:ids::bigint[]) as asked (id)
cross join lateral (
    select flow_id, name, state, job_state from tenure.flow_node where id = any (array[asked.id]) and job_id = asked.id
    union all
    select flow_id, name, state, job_state from tenure.flow_node where job_id = any (array[asked.id]) and job_id <> id
) as node
where node.state in ('waiting', 'skipped', 'failed', 'cancelled') and node.job_state is null
