-- Insert nodes of a new flow. Those that wait for nothing are started: their jobs are inserted in the same transaction.
insert into tenure.flow_node (
    id, flow_id, job_id, started_at, open, is_cleanup, feeds, name, state, on_failure, "each", contract, queue, type,
    parents, children, inputs, payload, options)
select id, :flow_id::bigint, case when mapped is null then id end, case when starts then clock.t end, open, is_cleanup, feeds,
       name, case when starts then 'started' else 'waiting' end, on_failure, mapped, contract, queue, type,
       parents::bigint[], children::bigint[], inputs, payload, options
from (select clock_timestamp() as t) as clock,
     unnest(
         :ids::bigint[], :names::text[], :starts::boolean[], :opens::integer[], :cleanups::boolean[], :feeds::boolean[],
         :policies::text[], :mapped::text[], :contracts::text[], :queues::text[], :types::text[], :parents::text[],
         :children::text[], :inputs::jsonb[], :payloads::jsonb[], :options::jsonb[]
     ) as node (id, name, starts, open, is_cleanup, feeds, on_failure, mapped, contract, queue, type, parents, children,
                inputs, payload, options)
