-- Which keys were ever made, the oldest first, and what time is it?
select id, name, hint, scopes, tenant_id, person, created_at, created_by, expires_at, revoked_at, revoked_by,
       clock_timestamp()
from tenure.api_key
order by id
