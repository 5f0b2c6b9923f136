-- Read these jobs, live or finished.
select id, contract, version, state, role, queue, type, tenant_id, priority, claims, raises, counter,
       max_attempts, payload::text, lease_owner, lease_expires_at, due_at, created_at, updated_at, started_at,
       finished_at, cancel_requested_at, trace_id, correlation_id, idempotency_key, origin_letter, last_error::text,
       result::text, checkpoint::text, pending::text, blocked_at, lease_token
from (
    select * from tenure.job where id = any (:ids::bigint[])
    union all
    select * from tenure.job_done where id = any (:ids::bigint[])
) as job
order by id
