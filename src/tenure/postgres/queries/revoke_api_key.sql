-- Revoke an API key. A revoked key keeps its first revocation.
-- The answer says when and by whom it was revoked, and whether this call did it. Of concurrent callers the lock lets one
-- be the first.
with locked as materialized (
    select * from tenure.api_key where id = :id::bigint for update
),
clock as materialized (
    select clock_timestamp() as t from locked
),
revoked as (
    update tenure.api_key set revoked_at = t, revoked_by = :actor::text
    from locked, clock
    where api_key.id = locked.id and locked.revoked_at is null
    returning api_key.revoked_at as at, api_key.revoked_by as by
)
select id, name, hint, scopes, tenant_id, person, created_at, created_by, expires_at,
       coalesce(revoked_at, at), coalesce(revoked_by, by), at is not null as new
from locked left join revoked on true
