-- What was answered to the call with this key.
update tenure.key set answer = :answer::jsonb where tenant_id = :tenant_id::text and key = :key::text
