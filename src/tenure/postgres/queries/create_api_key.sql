-- Create an API key: name, hash, hint, scopes, tenant, person, expiry.
insert into tenure.api_key (name, hash, hint, scopes, tenant_id, person, created_at, created_by, expires_at)
select :name::text, :hash::bytea, :hint::text, :scopes::text[], :tenant_id::text, :person::text, t, :created_by::text,
       t + :lifetime_ms::bigint * interval '1 millisecond'
from (select clock_timestamp() as t) as clock
returning id, name, hint, scopes, tenant_id, person, created_at, created_by, expires_at, revoked_at, revoked_by
