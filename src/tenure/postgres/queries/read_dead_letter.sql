-- Read this dead letter and the decision about it.
select id, job_id, contract, tenant_id, type, reason_code, stage, last_error::text, counter, claims, last_owner,
       last_lease_expires_at, correlation_id, trace_id, payload::text, status, failed_at, created_at, updated_at,
       requeued_as, requeued_by, discard_reason, discard_asked_by, discard_asked_at, discard_approved_by,
       discard_approved_at
from (
    select * from tenure.dead_letter where id = :id::bigint
    union all
    select * from tenure.dead_letter where job_id = :job_id::bigint
) as letter
