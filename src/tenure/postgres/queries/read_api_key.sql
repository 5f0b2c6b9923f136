-- Read the API key that has this hash, and the time.
select id, name, hint, scopes, tenant_id, person, created_at, created_by, expires_at, revoked_at, revoked_by,
       clock_timestamp()
from tenure.api_key
where hash = :hash::bytea
