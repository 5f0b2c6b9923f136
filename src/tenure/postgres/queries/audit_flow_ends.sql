-- Find ended jobs of flows that are not taken into account after :minutes minutes, and those of no node. At most :limit.
select flow_end.flow_id, flow_end.job_id, node.id is not null as is_of_node
from tenure.flow_end
left join tenure.flow_node as node on node.id = flow_end.node and node.flow_id = flow_end.flow_id
where node.id is null or flow_end.at < clock_timestamp() - :minutes::integer * interval '1 minute'
order by flow_end.flow_id, flow_end.job_id
limit :limit::bigint
