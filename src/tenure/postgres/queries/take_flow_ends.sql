-- Lock those of these flows that no other transaction works on; take their ended jobs, and end their nodes. A job whose node
-- another job runs by now is only taken.
-- It waits for nothing, and reads the flows as they are when they are locked. A job that ended since this statement began is
-- left: whoever has locked a flow looks again after the commit (find_flows_with_ends.sql).
-- The last row has no node: it has the number of taken jobs, and the locked flows.
with locked as materialized (
    select id, tenant_id, created_by, state, on_failure, nodes, open, cleanups, failed, tolerated, last_id
    from tenure.flow
    where id = any (:ids::bigint[])
    order by id
    for update skip locked
),
picked as materialized (
    select flow_id, job_id from tenure.flow_end
    where flow_id = any (array(select id from locked))
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
select null, (select count(*) from taken), (select json_agg(locked) from locked)::text, null, null, null
