-- List nodes of a flow, all or those with these ids: each behind its parents, members behind their mapped node.
-- The state of a job that has just ended comes from the row that waits to be taken into account.
select node.id, node.name, node.state, node.job_id, node.type, node.contract, node.queue, node.open, node.parents, node.on_failure,
       node."each" is not null,
       node.is_cleanup, node.part_of, node.error,
       coalesce(node.job_state, live.state, just_ended.state), node.started_at, node.finished_at
from tenure.flow_node as node
left join tenure.job as live on live.id = node.job_id and node.state = 'started'
left join tenure.flow_end as just_ended
    on just_ended.flow_id = node.flow_id and just_ended.job_id = node.job_id and node.state = 'started'
where node.flow_id = :id::bigint and (:ids::bigint[] is null or node.id = any (:ids::bigint[]))
order by coalesce(node.part_of, node.id), node.id
