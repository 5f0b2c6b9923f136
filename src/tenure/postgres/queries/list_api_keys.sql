-- List all API keys that were ever made, oldest first, and the time.
select id, name, hint, scopes, tenant_id, person, created_at, created_by, expires_at, revoked_at, revoked_by,
       clock_timestamp()
from tenure.api_key
order by id
