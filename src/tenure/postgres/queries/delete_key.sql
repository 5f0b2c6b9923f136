-- Delete the idempotency key of a call that was refused: it may be used again.
delete from tenure.key where tenant_id = :tenant_id::text and key = :key::text
