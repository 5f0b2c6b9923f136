-- Which job types were declared, and with which numbers?
select type, contract, lease_ttl_sec, heartbeat_sec, sla_sec, renews, max_attempts, backoff_base_ms, backoff_cap_ms,
       on_exhausted
from tenure.job_type
where :contract::text is null or contract = :contract::text
order by contract, type
