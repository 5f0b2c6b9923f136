-- List the job types that have options in force: the numbers, who declared them, and when.
select type, contract, lease_ttl_sec, heartbeat_sec, sla_sec, renews, max_attempts, backoff_base_ms, backoff_cap_ms,
       on_exhausted, application, declared_by, updated_at
from tenure.job_type
where (:contract::text is null or contract = :contract::text) and (withdrawn_at is null or withdrawn_at < updated_at)
order by contract, type
