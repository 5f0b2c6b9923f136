-- Make these jobs, each at most once for its key; say for each key which job it stands for, and by which body.
--
-- Keys come sorted, so two callers with the same keys never wait for each other in a circle. A key whose first use is
-- not committed yet makes us wait; this statement cannot see it afterwards, and the store asks again.
with asked as materialized (
    select a.n, a.key, a.hash, a.payload, a.due_at, a.delay_ms, a.trace_id, a.correlation_id,
           coalesce(a.queue, :every_queue::text) as queue, coalesce(a.type, :every_type::text) as type,
           coalesce(a.tenant_id, :every_tenant::text) as tenant_id,
           coalesce(a.priority, :every_priority::smallint) as priority,
           coalesce(a.max_attempts, :every_limit::integer) as max_attempts, nextval('tenure.job_id_seq') as new_id
    from unnest(
        :payloads::jsonb[], :each_queue::text[], :each_type::text[], :each_tenant::text[], :each_priority::smallint[],
        :each_limit::integer[],
        :dues::timestamptz[], :delays::bigint[], :traces::text[], :correlations::text[], :keys::text[], :hashes::text[]
    ) with ordinality
    as a (payload, queue, type, tenant_id, priority, max_attempts, due_at, delay_ms, trace_id, correlation_id, key, hash,
          n)
),
fresh as (
    insert into tenure.key (tenant_id, key, verb, hash, job_id)
    select tenant_id, key, 'enqueue', hash, new_id from asked order by n
    on conflict (tenant_id, key) do nothing
    returning job_id
),
made as (
    insert into tenure.job (
        id, contract, version, state, role, counter, queue, type, tenant_id, priority, max_attempts, due_at, payload,
        trace_id, correlation_id, created_by, idempotency_key, created_at, updated_at)
    select a.new_id, :contract::text, :version::text, :state::text, 'ready', :counter::integer, a.queue, a.type,
           a.tenant_id, a.priority, a.max_attempts,
           coalesce(a.due_at, clock.t + coalesce(a.delay_ms, 0) * interval '1 millisecond'), a.payload, a.trace_id,
           a.correlation_id, :created_by::text, a.key, clock.t, clock.t
    from (select clock_timestamp() as t) as clock, asked as a
    where a.new_id in (select job_id from fresh)
    returning id, due_at, created_at
)
select a.n, coalesce(used.job_id, made.id) as id, coalesce(used.hash, a.hash) as hash, used.verb, made.id is not null as made
from asked as a
left join made on made.id = a.new_id
left join tenure.key as used on used.tenant_id = a.tenant_id and used.key = a.key
order by a.n
