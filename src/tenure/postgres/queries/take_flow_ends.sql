-- Take ended jobs of these flows, and end their nodes; a job whose node another job runs by now is only taken.
-- The flows are locked, so no other transaction takes the same rows. The last row has no node: it counts the taken jobs.
with picked as materialized (
    select flow_id, job_id from tenure.flow_end
    where flow_id = any (:ids::bigint[])
    order by flow_id, job_id
    limit :limit::bigint
),
taken as (
    delete from tenure.flow_end using picked
    where flow_end.flow_id = picked.flow_id and flow_end.job_id = picked.job_id
    returning flow_end.*
),
ended as (
    update tenure.flow_node
    set state = taken.outcome, job_state = taken.state, result = taken.result, finished_at = taken.at
    from taken
    where flow_node.id = any (array[taken.node]) and flow_node.job_id = taken.job_id and flow_node.state = 'started'
    returning flow_node.id, flow_node.flow_id, flow_node.state, flow_node.on_failure, flow_node.part_of, flow_node.is_cleanup
)
select * from ended
union all
select null, count(*), null, null, null, null from taken
