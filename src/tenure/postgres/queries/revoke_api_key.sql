-- Let this key open nothing any more. One that is revoked stays as it was revoked first; the answer says since when and by
-- whom it is, and whether this call did it. Of callers at the same time the lock lets one be the first.
with asked as materialized (
    select * from tenure.api_key where id = :id::bigint for update
),
clock as materialized (
    select clock_timestamp() as t from asked
),
revoked as (
    update tenure.api_key set revoked_at = t, revoked_by = :actor::text
    from asked, clock
    where api_key.id = asked.id and asked.revoked_at is null
    returning api_key.revoked_at as at, api_key.revoked_by as by
)
select id, name, hint, scopes, tenant_id, person, created_at, created_by, expires_at,
       coalesce(revoked_at, at), coalesce(revoked_by, by), at is not null as new
from asked left join revoked on true
