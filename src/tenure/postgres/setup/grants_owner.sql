-- Hide keys from the reader, and let the owner create objects in this database.
revoke select on tenure.claim, tenure.key, tenure.api_key from tenure_read;
grant select (id, name, hint, scopes, tenant_id, person, created_at, created_by, expires_at, revoked_at, revoked_by)
    on tenure.api_key to tenure_read;
do $$
begin
    -- The owner creates the objects of later releases.
    if not has_database_privilege('tenure_owner', current_database(), 'create') then
        execute format('grant create on database %I to tenure_owner', current_database());
    end if;
    -- The creator of a role may administer it, but not yet act as it.
    if current_user <> 'tenure_owner' and not pg_has_role(current_user, 'tenure_owner', 'usage') then
        execute format('grant tenure_owner to %I', current_user);
    end if;
end
$$;
