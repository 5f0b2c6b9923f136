-- Read the flow of this tenant with this key: its id, and the hash of what was asked for.
select id, fingerprint from tenure.flow where tenant_id = :tenant_id::text and key = :key::text
