-- Store the answer to the call with this idempotency key.
update tenure.key set answer = :answer::jsonb where tenant_id = :tenant_id::text and key = :key::text
