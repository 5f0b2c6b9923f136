-- The call was refused: its key may be used again.
delete from tenure.key where tenant_id = :tenant_id::text and key = :key::text
