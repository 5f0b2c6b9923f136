-- Count down: the children of these nodes, which have ended, and these mapped nodes, whose members have ended.
-- A child that waits for no other node is started. Returns the nodes that came to zero, with the size of what a job of each
-- would carry.
with less as materialized (
    select id, count(*)::integer as n, false as is_mapped
    from (select unnest(children) as id from tenure.flow_node where id = any (:parents::bigint[])) as child
    group by id
    union all
    select id, n, true from unnest(:mapped::bigint[], :members::integer[]) as mapped (id, n)
),
counted as (
    update tenure.flow_node
    set open = flow_node.open - less.n,
        state = case when flow_node.open = less.n then 'started' else flow_node.state end,
        started_at = coalesce(flow_node.started_at, case when flow_node.open = less.n then clock_timestamp() end)
    from less
    where flow_node.id = any (array[less.id]) and flow_node.state = case when less.is_mapped then 'started' else 'waiting' end
    returning flow_node.id, flow_node.flow_id, flow_node.open, flow_node.payload, flow_node.inputs, less.is_mapped
)
select id, flow_id, is_mapped,
       coalesce(pg_column_size(payload), 0) + coalesce((
           select sum(pg_column_size(parent.result)) from tenure.flow_node as parent
           where parent.id = any (array(
               select given.id::bigint from jsonb_each(counted.inputs) as input, jsonb_array_elements_text(
                   case when jsonb_typeof(input.value) = 'array' then input.value else jsonb_build_array(input.value) end
               ) as given (id)
           ))
       ), 0)
from counted
where open = 0
order by id
