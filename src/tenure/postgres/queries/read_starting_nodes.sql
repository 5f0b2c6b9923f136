-- Read what the jobs of these nodes are made of: their values, and the results of their parents by argument.
select id, flow_id, job_id, contract, queue, type, "each", coalesce(payload, '{}')::text, options, (
           select jsonb_object_agg(input.key, case
                      when jsonb_typeof(input.value) = 'array' then (
                          select coalesce(jsonb_agg(coalesce(parent.result, 'null') order by given.n), '[]')
                          from jsonb_array_elements_text(input.value) with ordinality as given (id, n)
                          cross join lateral (
                              select result from tenure.flow_node where flow_node.id = any (array[given.id::bigint])
                          ) as parent
                      )
                      else (select result from tenure.flow_node
                            where flow_node.id = any (array[(input.value #>> '{}')::bigint]))
                  end)::text
           from jsonb_each(node.inputs) as input
       )
from tenure.flow_node as node
where id = any (:ids::bigint[])
order by id
