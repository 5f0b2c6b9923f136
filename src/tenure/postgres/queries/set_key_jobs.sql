-- Let these idempotency keys, which this transaction inserted, stand for the job that was in the way of theirs.
update tenure.key set job_id = a.job_id
from unnest(:tenants::text[], :keys::text[], :ids::bigint[]) as a (tenant_id, key, job_id)
where key.tenant_id = a.tenant_id and key.key = a.key
