-- Find which of these claim keys have won a job.
select key from tenure.claim where key = any (:claim_keys::uuid[])
