-- Operations on many jobs or dead letters, and dead letters by cause.
--
--   operation            what a person wants done to all that a search finds; operation_item: exactly these, with how each
--                        was when it was found; operation_batch: what one transaction did
--   dead_letter_group    the dead letters of one cause, tenant, type and release: counts, first and last
--   dead_letter_cause    the group of a dead letter, and the status with which it is counted there
--   dead_letter_change   dead letters that are not counted yet, or not with their status of now

create table tenure.operation (
    id         bigint generated always as identity primary key,
    total      bigint not null default 0,
    created_at timestamptz not null default clock_timestamp(),
    next_at    timestamptz not null default '-infinity', -- with a limit of speed: no batch begins before
    started_at timestamptz,
    ended_at   timestamptz, -- when it was done or aborted
    per_second double precision check (per_second > 0), -- NULL: as fast as it goes
    of_letters boolean not null,
    collected  boolean not null default false, -- every match is among its items
    verb       text not null,
    state      text not null default 'preview' check (state in ('preview', 'running', 'aborted', 'done')),
    query      text not null,
    cursor     text, -- where the search goes on
    tenant_id  text, -- the tenant that its key is bound to; NULL: none
    created_by text not null,
    started_by text,
    aborted_by text,
    options    jsonb not null default '{}',
    check (state = 'preview' or started_by is not null)
) with (fillfactor = 70);
create index operation_running on tenure.operation (next_at, id) where state = 'running';

-- An item is worked on once: the transaction that changes the job writes its end here.
create table tenure.operation_item (
    operation_id bigint not null,
    item_id      bigint not null, -- of a job or a dead letter
    made         bigint, -- the job that was made of it
    state        text not null default 'waiting' check (state in ('waiting', 'done', 'skipped')),
    seen         text not null, -- how it was when it was found: what differs now is not what the person saw
    code         text, -- why it was skipped
    why          text,
    primary key (operation_id, item_id)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
create index operation_item_waiting on tenure.operation_item (operation_id, item_id) where state = 'waiting';

-- Counts are rows that are only added: processes that work on one operation do not wait for each other.
create table tenure.operation_batch (
    id           bigint generated always as identity primary key,
    operation_id bigint not null,
    at           timestamptz not null default clock_timestamp(),
    done         bigint not null,
    skipped      jsonb not null -- code -> how many
);
create index operation_batch_operation on tenure.operation_batch (operation_id);

create table tenure.dead_letter_group (
    id          bigint generated always as identity primary key,
    letters     bigint not null,
    open        bigint not null,
    first_seen  timestamptz not null,
    last_seen   timestamptz not null,
    last_letter bigint not null, -- the example
    fingerprint text collate "C" not null,
    contract    text collate "C" not null,
    tenant_id   text collate "C" not null,
    type        text collate "C" not null,
    release     text collate "C" not null, -- '': unknown
    reason_code text not null,
    error_type  text not null,
    code        text,
    message     text not null, -- without its data
    unique (fingerprint, contract, tenant_id, type, release)
) with (fillfactor = 70);

create table tenure.dead_letter_cause (
    letter_id   bigint primary key,
    group_id    bigint not null,
    status      text not null,
    fingerprint text collate "C" not null
) with (fillfactor = 70);
create index dead_letter_cause_fingerprint on tenure.dead_letter_cause (fingerprint, letter_id);

create table tenure.dead_letter_change (
    id        bigint generated always as identity primary key,
    letter_id bigint not null
) with (autovacuum_vacuum_scale_factor = 0.05);

-- Of each row and not of each statement: most statements that may write a dead letter write none.
create function tenure.note_dead_letter() returns trigger
    language plpgsql as $$
begin
    insert into tenure.dead_letter_change (letter_id) values (new.id);
    return null;
end
$$;
create trigger note_dead_letter after insert or update of status on tenure.dead_letter
    for each row execute function tenure.note_dead_letter();
-- Those that exist already: upkeep groups them. The trigger holds its lock meanwhile, some 0.1 s for 100,000.
insert into tenure.dead_letter_change (letter_id) select id from tenure.dead_letter;

-- A payload with other values at some paths: `changes` is [[path, value], ...], each path a list of keys.
create function tenure.edited(payload jsonb, changes jsonb, max_bytes integer) returns jsonb
    language plpgsql immutable parallel safe as $$
declare
    change jsonb;
    path   text[];
    inside text;
begin
    for change in select value from jsonb_array_elements(changes) loop
        path := array(select jsonb_array_elements_text(change -> 0));
        for depth in 0 .. cardinality(path) - 1 loop
            inside := jsonb_typeof(payload #> path[1:depth]);
            if inside is null then
                payload := jsonb_set(payload, path[1:depth], '{}');
            elsif inside not in ('object', 'array') then
                raise exception 'the payload has % at %, which has no keys',
                    inside, coalesce(nullif(array_to_string(path[1:depth], '.'), ''), 'its top')
                    using errcode = 'data_exception';
            end if;
        end loop;
        payload := jsonb_set(payload, path, change -> 1);
    end loop;
    if octet_length(payload::text) > max_bytes then
        raise exception 'the changed payload has % bytes; at most % are allowed', octet_length(payload::text), max_bytes
            using errcode = 'data_exception';
    end if;
    return payload;
end
$$;

-- A database with separate roles: its app uses the new tables without `tenure migrate --grants`.
do $$
begin
    if exists (select from pg_namespace where nspname = 'tenure' and nspowner = to_regrole('tenure_owner')) then
        grant insert, update, delete on tenure.operation, tenure.operation_item, tenure.operation_batch to tenure_app;
        grant insert, update on tenure.dead_letter_group, tenure.dead_letter_cause to tenure_app;
        grant insert, delete on tenure.dead_letter_change to tenure_app;
        grant usage on all sequences in schema tenure to tenure_app;
    end if;
end
$$;
