-- End the nodes of these flows that wait: clean-up nodes, or the others, or both. Returns how many of each flow.
with ended as (
    update tenure.flow_node set state = :state::text, finished_at = clock_timestamp()
    where flow_id = any (:ids::bigint[]) and state = 'waiting' and is_cleanup = any (:cleanups::boolean[])
    returning flow_id
)
select flow_id, count(*) from ended group by flow_id
