-- End these nodes, which could not be started, as failed.
update tenure.flow_node
set state = 'failed', error = failed.error, finished_at = clock_timestamp()
from unnest(:ids::bigint[], :errors::text[]) as failed (id, error)
where flow_node.id = failed.id and flow_node.state = 'started'
returning flow_node.id, flow_node.flow_id, flow_node.state, flow_node.on_failure, flow_node.part_of, flow_node.is_cleanup
