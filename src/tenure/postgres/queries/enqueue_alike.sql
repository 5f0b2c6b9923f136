-- Make jobs that differ in their payloads alone, due now; the answer lists their ids in the order asked.
-- What a batch nearly always is. Any other: enqueue.sql.
insert into tenure.job (
    id, contract, version, state, role, counter, queue, type, tenant_id, priority, max_attempts, due_at, payload,
    created_by, created_at, updated_at)
select nextval('tenure.job_id_seq'), :contract::text, :version::text, :state::text, 'ready', :counter::integer,
       :every_queue::text, :every_type::text, :every_tenant::text, :every_priority::smallint,
       coalesce(:every_limit::integer,
                (select max_attempts from tenure.job_type where contract = :contract::text and type = :every_type::text),
                :default_limit::integer),
       clock.t, payload, :created_by::text, clock.t, clock.t
from (select clock_timestamp() as t) as clock, unnest(:payloads::jsonb[]) as payload
returning id
--lone:, pg_notify('tenure', :word::text)
