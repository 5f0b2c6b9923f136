-- The dashboard: the scope `read`, and the sessions of people who are logged in with a key.

-- A wider condition takes the place of the old one, so no row can break it. The table has few rows.
-- squawk-ignore ban-drop-constraint
alter table tenure.api_key drop constraint api_key_scopes_check;
-- squawk-ignore constraint-missing-not-valid
alter table tenure.api_key add constraint api_key_scopes_check
    check (cardinality(scopes) > 0 and scopes <@ array['read', 'enqueue', 'work', 'operate', 'approve', 'admin']);

-- A session is found by the hash of its token, which only the browser has. It ends with the key that opened it.
create table tenure.dashboard_session (
    token_hash bytea primary key check (octet_length(token_hash) = 32),
    key_hash   bytea not null check (octet_length(key_hash) = 32),
    began_at   timestamptz not null default clock_timestamp(), -- when this token was made; it is replaced after a while
    expires_at timestamptz not null
);
create index dashboard_session_expires on tenure.dashboard_session (expires_at);

do $$
begin
    if exists (select from pg_namespace where nspname = 'tenure' and nspowner = to_regrole('tenure_owner')) then
        grant insert, update, delete on tenure.dashboard_session to tenure_app;
    end if;
end
$$;
