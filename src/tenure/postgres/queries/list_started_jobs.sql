-- List the jobs of this flow that are live: those of started nodes; without those of clean-up nodes.
select node.name, node.job_id
from tenure.flow_node as node
where node.flow_id = :id::bigint and node.state = 'started' and node.job_id is not null and not node.is_cleanup
order by node.job_id
