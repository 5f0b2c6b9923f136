-- Read what the jobs of these nodes, none of them a member, are made of: their values, and the results of their parents by
-- argument.
select node.id, node.flow_id, node.job_id, node.contract, node.queue, node.type, node."each",
       coalesce(node.payload, '{}')::text, node.options, given.results::text
from tenure.flow_node as node
cross join lateral (
    select jsonb_object_agg(input.key, case
               when jsonb_typeof(input.value) = 'array' then (
                   select coalesce(jsonb_agg(coalesce(parent.result, 'null') order by one.n), '[]')
                   from jsonb_array_elements_text(input.value) with ordinality as one (id, n)
                   cross join lateral (
                       select result from tenure.flow_node where flow_node.id = any (array[one.id::bigint])
                   ) as parent
               )
               else (select result from tenure.flow_node
                     where flow_node.id = any (array[(input.value #>> '{}')::bigint]))
           end) as results
    from jsonb_each(node.inputs) as input
) as given
where node.id = any (:ids::bigint[])
order by node.id
