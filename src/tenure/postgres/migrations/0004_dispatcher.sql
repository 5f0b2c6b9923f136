-- Who may talk to the dispatcher, and for which tenant? A key is kept as the sha256 of its whole text: it is 256 random
-- bits, which nobody can try one after the other, so a fast hash is right here and a slow one would only cost each request.
-- No row is ever deleted: once there was a key, the dispatcher asks for one for ever, also when all are revoked.
create table tenure.api_key (
    id         bigint generated always as identity primary key,
    name       text not null, -- for people
    hash       bytea not null unique check (octet_length(hash) = 32),
    hint       text not null, -- how the key begins, to recognise it
    scopes     text[] not null
               check (cardinality(scopes) > 0 and scopes <@ array['enqueue', 'work', 'operate', 'approve', 'admin']),
    tenant_id  text, -- NULL: all tenants
    person     text, -- two people are told apart by this, never by their keys
    created_at timestamptz not null default clock_timestamp(),
    created_by text not null,
    expires_at timestamptz, -- NULL: valid until it is revoked
    revoked_at timestamptz,
    revoked_by text,
    check ((revoked_at is null) = (revoked_by is null)),
    -- Not `person is not null` alone: a name of spaces tells nobody apart, and a CHECK that is NULL lets everything pass.
    constraint api_key_approver check ('approve' <> all (scopes) or coalesce(btrim(person), '') <> '')
);

-- The ready jobs of those tenants that have a name: a key that is bound to one of them claims from here, past whatever
-- the others have in the same queues. Who does not use tenants pays nothing for it. Made in place: live jobs are few, and
-- migrations are transactions.
-- squawk-ignore require-concurrent-index-creation
create index job_ready_tenant on tenure.job (contract, tenant_id, queue, priority, coalesce(due_at, '-infinity'), id)
    where role = 'ready' and tenant_id <> 'default';

-- Events that a worker reported with a completion: stored with it or not at all. Where they lead to is found out later.
create table tenure.emitted (
    id         bigint generated always as identity primary key,
    job_id     bigint not null,
    claims     integer not null, -- under which claim the worker said so
    body       jsonb not null,
    created_at timestamptz not null default clock_timestamp(),
    routed_at  timestamptz
);
create index emitted_pending on tenure.emitted (id) where routed_at is null;
create index emitted_job on tenure.emitted (job_id);

-- Where the roles have their grants already, the app can use both from now on. It makes and revokes keys and changes
-- nothing else about them; everybody granted can see which keys there are, and readers no hash: what is made later in
-- this schema would be theirs to read whole.
do $$
begin
    if to_regrole('tenure_app') is not null then
        if has_table_privilege('tenure_app', 'tenure.job', 'insert') then
            grant select, insert, update (revoked_at, revoked_by) on tenure.api_key to tenure_app;
            grant select, insert, update (routed_at) on tenure.emitted to tenure_app;
            revoke select on tenure.api_key from tenure_read;
            grant select (id, name, hint, scopes, tenant_id, person, created_at, created_by, expires_at, revoked_at,
                          revoked_by) on tenure.api_key to tenure_read;
            grant select on tenure.emitted to tenure_read;
        end if;
    end if;
end
$$;
