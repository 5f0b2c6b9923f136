-- Read what this idempotency key was used for, and the answer.
select verb, hash, answer from tenure.key where tenant_id = :tenant_id::text and key = :key::text
