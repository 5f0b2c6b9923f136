-- Insert these jobs; return their ids in the order of the call.
-- A column that is the same for the whole batch comes as one value (every_…), else as an array (each_…). Jobs with an
-- idempotency key come with the id that their key was given, nodes of a flow with the id that was reserved for them.
with tallied as (
    insert into tenure.tally (number, contract, type, tenant_id, queue, trigger, path)
    select count(*), :contract::text, type, tenant_id, queue, 'enqueue', '>' || :state::text
    from (
        select coalesce(a.type, :every_type::text) as type, coalesce(a.tenant_id, :every_tenant::text) as tenant_id,
               coalesce(a.queue, :every_queue::text) as queue
        from unnest(:payloads::jsonb[], :each_type::text[], :each_tenant::text[], :each_queue::text[])
            as a (payload, type, tenant_id, queue)
    ) as one
    group by type, tenant_id, queue
)
insert into tenure.job (
    id, contract, version, state, role, counter, queue, type, tenant_id, priority, max_attempts, due_at, payload,
    trace_id, correlation_id, created_by, idempotency_key, created_at, updated_at, expires_at, flow_node)
select coalesce(a.id, nextval('tenure.job_id_seq')), :contract::text, :version::text, :state::text, :role::text,
       :counter::integer, coalesce(a.queue, :every_queue::text), coalesce(a.type, :every_type::text),
       coalesce(a.tenant_id, :every_tenant::text), coalesce(a.priority, :every_priority::smallint),
       coalesce(a.max_attempts, :every_limit::integer,
                -- The type's limit: read once, and only when a job has none of its own.
                ((select jsonb_object_agg(type, max_attempts) from tenure.job_type where contract = :contract::text)
                 ->> coalesce(a.type, :every_type::text))::integer,
                :default_limit::integer),
       -- A job that begins by waiting for a decision has a due time only if the caller gave one.
       coalesce(a.due_at, clock.t + coalesce(a.delay_ms, case when :role::text = 'ready' then 0 end)
                          * interval '1 millisecond'), a.payload, a.trace_id,
       a.correlation_id, :created_by::text, a.key, clock.t, clock.t,
       coalesce(a.expires_at, clock.t + a.expires_ms * interval '1 millisecond'), a.flow_node
from (
        -- A statement that makes one job may also notify listeners: that saves the worker which waits for it a round trip.
        select clock_timestamp() as t, case when :word::text is not null then pg_notify('tenure', :word::text) end as notified
     ) as clock,
     unnest(
         :payloads::jsonb[], :each_queue::text[], :each_type::text[], :each_tenant::text[], :each_priority::smallint[],
         :each_limit::integer[], :dues::timestamptz[], :delays::bigint[], :traces::text[], :correlations::text[],
         :ids::bigint[], :keys::text[], :expiries::timestamptz[], :expires_ms::bigint[], :nodes::bigint[]
     ) with ordinality
     as a (payload, queue, type, tenant_id, priority, max_attempts, due_at, delay_ms, trace_id, correlation_id, id, key,
           expires_at, expires_ms, flow_node, n)
order by a.n
returning case when id < (select high from tenure.range order by low desc limit 1) then id else nextval('tenure.no_range') end
