-- Find the node whose id or job has this id and whose job is not made: it waits, or will not run. And its parents that
-- have not ended.
select node.flow_id, flow.name, flow.tenant_id, node.id,
       array(select parent.id from tenure.flow_node as parent
             where parent.id = any (node.parents) and parent.state in ('waiting', 'started') order by parent.id)
from (
    select * from tenure.flow_node where id = :job_id::bigint and coalesce(job_id, id) = :job_id::bigint
    union all
    select * from tenure.flow_node where job_id = :job_id::bigint and job_id <> id
) as node
join tenure.flow on flow.id = node.flow_id
where node.state in ('waiting', 'skipped', 'failed', 'cancelled') and node.job_state is null
