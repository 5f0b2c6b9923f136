-- Measure what a job of each of these nodes would carry, in bytes: without the list of a mapped node, and that list.
select node.id, coalesce(pg_column_size(node.payload), 0) + coalesce(sum(given.bytes) filter (where not given.is_list), 0),
       coalesce(sum(given.bytes) filter (where given.is_list), 0)
from tenure.flow_node as node
left join lateral (
    select input.key is not distinct from node."each" as is_list, pg_column_size(parent.result) as bytes
    from jsonb_each(node.inputs) as input
    cross join lateral jsonb_array_elements_text(
        case when jsonb_typeof(input.value) = 'array' then input.value else jsonb_build_array(input.value) end
    ) as one (id)
    cross join lateral (
        select result from tenure.flow_node where flow_node.id = any (array[one.id::bigint])
    ) as parent
) as given on true
where node.id = any (:ids::bigint[])
group by node.id, node.payload
