-- End an application's stored options that none of its live workers declares, nor the caller (:keep).
-- Options that were declared in the last 30 seconds stay: their worker may not have written its row in tenure.worker yet.
-- `keep` is contract -> type -> options. The row stays and says when it ended; numbers that are NULL are the contract's.
update tenure.job_type
set lease_ttl_sec = null, heartbeat_sec = null, sla_sec = null, renews = true, max_attempts = null, backoff_base_ms = null,
    backoff_cap_ms = null, on_exhausted = null, withdrawn_at = clock_timestamp()
where application = :application::text and (withdrawn_at is null or withdrawn_at < updated_at)
  and updated_at < clock_timestamp() - interval '30 seconds'
  and not coalesce(:keep::jsonb -> contract ? type, false)
  and not exists (select from tenure.live_worker
                  where application = :application::text and declares -> job_type.contract ? job_type.type)
returning contract, type
