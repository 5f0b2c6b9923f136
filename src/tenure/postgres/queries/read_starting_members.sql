-- Read what the jobs of these members are made of: the values of their mapped node, the results of its parents by argument,
-- and one item of the list. Each mapped node and its list are read once, not once for each member.
with node as materialized (
    select id, flow_id, job_id, contract, queue, type, part_of, place
    from tenure.flow_node
    where id = any (:ids::bigint[])
),
whole as materialized (
    select mapped.id, mapped."each", coalesce(mapped.payload, '{}')::text as payload, mapped.options,
           given.results - mapped."each" as others, given.results -> mapped."each" as list
    from (select distinct part_of from node) as one
    cross join lateral (select * from tenure.flow_node where flow_node.id = any (array[one.part_of])) as mapped
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
        from jsonb_each(mapped.inputs) as input
    ) as given
)
select node.id, node.flow_id, node.job_id, node.contract, node.queue, node.type, null, whole.payload, whole.options,
       (whole.others || jsonb_build_object(whole."each", whole.list -> node.place))::text
from node
join whole on whole.id = node.part_of
order by node.id
