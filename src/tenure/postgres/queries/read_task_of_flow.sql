-- Read the names of a node and of its flow, and by argument the nodes whose results are arguments of its job; a member has
-- the arguments of its mapped node.
select flow.name, node.name, given.argument, parent.id, parent.name
from tenure.flow_node as node
join tenure.flow on flow.id = node.flow_id
left join tenure.flow_node as whole on whole.id = any (array[node.part_of])
left join lateral (
    select input.key as argument, one.id::bigint as parent, one.n
    from jsonb_each(coalesce(whole.inputs, node.inputs)) as input
    cross join lateral jsonb_array_elements_text(
        case when jsonb_typeof(input.value) = 'array' then input.value else jsonb_build_array(input.value) end
    ) with ordinality as one (id, n)
) as given on true
left join lateral (
    select id, name from tenure.flow_node where flow_node.id = any (array[given.parent])
) as parent on true
where node.id = :node::bigint
order by given.argument, given.n
