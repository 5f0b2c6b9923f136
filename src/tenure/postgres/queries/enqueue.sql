-- Make these jobs; the answer lists their ids in the order asked.
insert into tenure.job (
    contract, version, state, role, counter, queue, type, tenant_id, priority, max_attempts, due_at, payload, trace_id,
    correlation_id, created_by, created_at, updated_at)
select :contract::text, :version::text, :state::text, 'ready', :counter::integer, a.queue, a.type, a.tenant_id, a.priority,
       a.max_attempts, coalesce(a.due_at, clock.t + coalesce(a.delay_ms, 0) * interval '1 millisecond'), a.payload,
       a.trace_id, a.correlation_id, :created_by::text, clock.t, clock.t
from (select clock_timestamp() as t) as clock,
     unnest(
         :queues::text[], :types::text[], :tenants::text[], :priorities::smallint[], :limits::integer[], :payloads::jsonb[],
         :dues::timestamptz[], :delays::bigint[], :traces::text[], :correlations::text[]
     ) with ordinality
     as a (queue, type, tenant_id, priority, max_attempts, payload, due_at, delay_ms, trace_id, correlation_id, n)
order by a.n
returning id, due_at, created_at
