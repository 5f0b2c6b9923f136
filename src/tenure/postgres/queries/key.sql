-- What was this key used for, and what was answered?
select verb, hash, answer from tenure.key where tenant_id = :tenant_id::text and key = :key::text
