-- Insert jobs that differ only in their payloads and have no due time of their own; return their ids in the order of the call.
-- Nearly every batch is like this. Any other: enqueue.sql.
with tallied as (
    insert into tenure.tally (number, contract, type, tenant_id, queue, trigger, path)
    select cardinality(:payloads::jsonb[]), :contract::text, :every_type::text, :every_tenant::text, :every_queue::text, 'enqueue',
           '>' || :state::text
)
insert into tenure.job (
    id, contract, version, state, role, counter, queue, type, tenant_id, priority, max_attempts, due_at, payload,
    created_by, created_at, updated_at)
select nextval('tenure.job_id_seq'), :contract::text, :version::text, :state::text, :role::text, :counter::integer,
       :every_queue::text, :every_type::text, :every_tenant::text, :every_priority::smallint,
       coalesce(:every_limit::integer,
                (select max_attempts from tenure.job_type where contract = :contract::text and type = :every_type::text),
                :default_limit::integer),
       case when :role::text = 'ready' then clock.t end, payload, :created_by::text, clock.t, clock.t
from (
        -- A statement that makes one job may also notify listeners: that saves the worker which waits for it a round trip.
        select clock_timestamp() as t, case when :word::text is not null then pg_notify('tenure', :word::text) end as notified
     ) as clock, unnest(:payloads::jsonb[]) as payload
returning case when id < (select high from tenure.range order by low desc limit 1) then id else nextval('tenure.no_range') end
