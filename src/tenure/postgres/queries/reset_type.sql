-- End a job type's stored options, whichever application declared them.
update tenure.job_type
set lease_ttl_sec = null, heartbeat_sec = null, sla_sec = null, renews = true, max_attempts = null, backoff_base_ms = null,
    backoff_cap_ms = null, on_exhausted = null, withdrawn_at = clock_timestamp()
where type = :type::text and (:contract::text is null or contract = :contract::text)
  and (withdrawn_at is null or withdrawn_at < updated_at)
returning contract, type
