-- Counts of moves: what every statement that moves jobs counted, and roll-ups of it by minute, by hour and for ever.
--
--   tally         one row per statement, type, tenant, queue and path, inserted with the moves; upkeep folds and deletes it
--   tally_group   which contract, type, tenant and queue a roll-up is about
--   rollup        the folded counts
--   refusal       calls that were refused, each with its time
--
-- No statement that reads counts reads jobs. A job that is made is counted as a hop from no state (`>queued`), and one that
-- changes its queue as two, away and to. So the live jobs in a state are the hops to it that did not end them, less those
-- from it. Refusals are counted as `verb>code`, with triggers that begin with `refused_`.

create table tenure.tally (
    at        timestamptz not null default clock_timestamp(),
    seconds   double precision, -- the sum of the durations: of a claim, how long the jobs were due; of an end, how long they ran
    number    integer not null,
    bucket    smallint, -- of the durations, as in tenure.duration_bucket; NULL: the move has none
    ended     boolean not null default false, -- the jobs left the live ones
    contract  text not null,
    type      text not null,
    tenant_id text not null,
    queue     text not null,
    trigger   text not null,
    path      text not null -- states, as in `running>queued`; `>queued`: made
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

create table tenure.tally_group (
    id        integer generated always as identity primary key,
    since     timestamptz not null default clock_timestamp(),
    contract  text collate "C" not null,
    type      text collate "C" not null,
    tenant_id text collate "C" not null,
    queue     text collate "C" not null,
    unique (contract, type, tenant_id, queue)
);

-- A path of several hops is counted once for each hop; its duration with the first one.
create table tenure.rollup (
    start      timestamptz not null,
    last_at    timestamptz not null, -- of the newest move that is counted here
    seconds    double precision not null,
    number     bigint not null,
    group_id   integer not null,
    bucket     smallint not null, -- -1: the move has no duration
    ended      boolean not null, -- the hop ended the job
    unit       text collate "C" not null check (unit in ('minute', 'hour', 'ever')),
    trigger    text collate "C" not null,
    from_state text collate "C" not null,
    to_state   text collate "C" not null,
    primary key (unit, start, group_id, trigger, from_state, to_state, ended, bucket)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

create table tenure.refusal (
    at        timestamptz not null default clock_timestamp(),
    job_id    bigint not null,
    contract  text not null,
    type      text not null,
    tenant_id text not null,
    queue     text not null,
    verb      text not null,
    code      text not null, -- the reason code that the caller got
    kind      text not null check (kind in ('conflict', 'stale', 'state', 'other'))
);
create index refusal_at on tenure.refusal (at);

-- The upper bounds of the buckets of a duration, in seconds; the last bucket has none.
create function tenure.duration_bounds() returns double precision[]
    language sql immutable parallel safe as $$
    select '{0.001,0.0025,0.005,0.01,0.025,0.05,0.1,0.25,0.5,1,2.5,5,10,30,60,120,300,600,1800,3600,14400,86400}'::double precision[]
$$;

-- The bucket of a duration in seconds: 0 up to the first bound, and so on. A bound belongs to its bucket; clocks have microseconds.
create function tenure.duration_bucket(seconds double precision) returns smallint
    language sql immutable parallel safe as $$
    select width_bucket(seconds - 0.0000005,
        '{0.001,0.0025,0.005,0.01,0.025,0.05,0.1,0.25,0.5,1,2.5,5,10,30,60,120,300,600,1800,3600,14400,86400}'::double precision[])::smallint
$$;

-- The counts of every unit, with what is not folded yet.
create view tenure.move_count with (security_invoker = true) as
select rollup.unit, rollup.start, tally_group.contract, tally_group.type, tally_group.tenant_id, tally_group.queue,
       rollup.trigger, rollup.from_state, rollup.to_state, rollup.ended, rollup.bucket, rollup.number, rollup.seconds, rollup.last_at
from tenure.rollup join tenure.tally_group on tally_group.id = rollup.group_id
union all
select each.unit, case each.unit when 'ever' then timestamptz '-infinity' else date_trunc(each.unit, tally.at, 'UTC') end,
       tally.contract, tally.type, tally.tenant_id, tally.queue, tally.trigger, states[k], states[k + 1],
       tally.ended and k = cardinality(states) - 1,
       case when k = 1 then coalesce(tally.bucket, -1::smallint) else -1::smallint end, tally.number::bigint,
       case when k = 1 then coalesce(tally.seconds, 0) else 0 end, tally.at
from tenure.tally
cross join (values ('minute'), ('hour'), ('ever')) as each (unit)
cross join lateral string_to_array(tally.path, '>') as states
cross join lateral generate_series(1, cardinality(states) - 1) as k;

-- The jobs that live already.
insert into tenure.tally (number, contract, type, tenant_id, queue, trigger, path)
select count(*), contract, type, tenant_id, queue, 'recount', '>' || state
from tenure.job
group by contract, type, tenant_id, queue, state;

-- As in migration 3, and it counts.
create or replace function tenure.enqueue(
    type           text,
    payload        jsonb default '{}',
    queue          text default 'default',
    contract       text default 'standard',
    priority       integer default 5,
    tenant_id      text default 'default',
    run_at         timestamptz default null,
    delay          interval default null,
    max_attempts   integer default null,
    key            text default null,
    correlation_id text default null,
    trace_id       text default null,
    notify         boolean default true
) returns bigint
    language plpgsql volatile parallel unsafe security invoker set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    t          constant timestamptz := clock_timestamp();
    due        timestamptz;
    registered record;
    used       record;
    job_hash   text;
    new_id     bigint;
begin
    if enqueue.type is null or enqueue.payload is null or enqueue.queue is null or enqueue.contract is null
        or enqueue.priority is null or enqueue.tenant_id is null or enqueue.notify is null then
        raise exception 'type, payload, queue, contract, priority, tenant_id and notify must not be NULL'
            using errcode = 'invalid_parameter_value', hint = 'Next: leave the parameter out to get its default';
    end if;
    perform tenure.check_name('type', enqueue.type, 200);
    perform tenure.check_name('queue', enqueue.queue, 100);
    perform tenure.check_name('tenant_id', enqueue.tenant_id, 100);
    perform tenure.check_name('key', enqueue.key, 255);
    perform tenure.check_name('trace_id', enqueue.trace_id, 200);
    perform tenure.check_name('correlation_id', enqueue.correlation_id, 200);
    if enqueue.priority not between 0 and 9 then
        raise exception 'priority is %; it must be within 0..9', enqueue.priority using errcode = 'invalid_parameter_value';
    end if;
    if enqueue.run_at is not null and enqueue.delay is not null then
        raise exception 'give either run_at or delay, not both' using errcode = 'invalid_parameter_value';
    end if;
    if enqueue.delay not between interval '0' and interval '3660 days' then
        raise exception 'delay is %; it must be within 0..3660 days', enqueue.delay using errcode = 'invalid_parameter_value';
    end if;
    -- What a client can read as a time.
    if enqueue.run_at < '0001-01-02 00:00+00' or enqueue.run_at >= '9999-12-31 00:00+00' then
        raise exception 'run_at is %, which is not a usable time', enqueue.run_at using errcode = 'invalid_parameter_value';
    end if;
    perform tenure.check_payload(enqueue.payload);

    -- The newest registered version, as the library chooses it.
    select newest.version, d.initial, d.wakeup, initial_role.name as role, (d.counter ->> 'initial')::integer as counter, d.budget ->> 'name' as limit_name,
           (d.budget ->> 'default')::integer as default_limit, (d.budget ->> 'minimum')::integer as lowest,
           (d.budget ->> 'maximum')::integer as highest
    into registered
    from (
        select c.version, c.declaration from tenure.contract as c where c.name = enqueue.contract
        order by c.registered_at desc, c.version desc
        limit 1
    ) as newest, json_to_record(newest.declaration) as d (initial text, states jsonb, wakeup text, counter json, budget json),
    -- A job begins by waiting if its initial state is not ready.
    lateral (
        select case when d.states -> d.initial ? 'waiting' and not d.states -> d.initial ? 'ready' then 'waiting' else 'ready' end
    ) as initial_role (name);
    if not found then
        raise exception 'no contract % is registered', quote_literal(enqueue.contract)
            using errcode = 'undefined_object', hint = 'Next: tenure contracts list; tenure migrate registers contracts';
    end if;
    if enqueue.max_attempts not between registered.lowest and registered.highest then
        raise exception '% of contract % is %; it must be within %..%', registered.limit_name, enqueue.contract,
            enqueue.max_attempts, registered.lowest, registered.highest using errcode = 'invalid_parameter_value';
    end if;

    if enqueue.key is null then
        new_id := nextval('tenure.job_id_seq');
    else
        job_hash := encode(sha256(convert_to('[' || tenure.ascii_json(enqueue.contract) || ', ' || tenure.ascii_json(enqueue.type)
            || ', ' || tenure.sorted_json(case when jsonb_typeof(enqueue.payload) = 'object' then enqueue.payload - '$timeout'
                                               else enqueue.payload end) || ']', 'UTF8')), 'hex');
        loop
            -- Waits for another transaction that uses the key for the first time.
            insert into tenure.key (tenant_id, key, verb, hash, job_id)
            values (enqueue.tenant_id, enqueue.key, 'enqueue', job_hash, nextval('tenure.job_id_seq'))
            on conflict (tenant_id, key) do nothing
            returning job_id into new_id;
            exit when new_id is not null;
            select k.verb, k.hash, k.job_id into used from tenure.key as k
            where k.tenant_id = enqueue.tenant_id and k.key = enqueue.key;
            continue when not found; -- retention has deleted it meanwhile
            if (used.verb, used.hash) is distinct from ('enqueue', job_hash) then
                raise exception 'the key % was used before with another body (job %)', quote_literal(enqueue.key), used.job_id
                    using errcode = 'unique_violation', hint = 'Next: use a new key';
            end if;
            return used.job_id;
        end loop;
    end if;
    if new_id >= (select r.high from tenure.range as r order by r.low desc limit 1) then
        raise exception 'no id range is left' using errcode = 'sequence_generator_limit_exceeded',
            hint = 'Next: select tenure.extend_ranges(4) in a transaction of its own, and run tenure upkeep, which does it ahead';
    end if;

    -- A job that begins by waiting for a decision has a due time only if the caller gave one.
    due := coalesce(enqueue.run_at, t + coalesce(enqueue.delay, case when registered.role = 'ready' then interval '0' end));
    insert into tenure.job (
        id, contract, version, state, role, counter, queue, type, tenant_id, priority, max_attempts, due_at, payload,
        trace_id, correlation_id, idempotency_key, created_at, updated_at)
    values (
        new_id, enqueue.contract, registered.version, registered.initial, registered.role, registered.counter, enqueue.queue,
        enqueue.type, enqueue.tenant_id, enqueue.priority,
        coalesce(enqueue.max_attempts,
                 (select o.max_attempts from tenure.job_type as o where o.contract = enqueue.contract and o.type = enqueue.type),
                 registered.default_limit),
        due, enqueue.payload, enqueue.trace_id, enqueue.correlation_id, enqueue.key, t, t);
    insert into tenure.tally (at, number, contract, type, tenant_id, queue, trigger, path)
    values (t, 1, enqueue.contract, enqueue.type, enqueue.tenant_id, enqueue.queue, 'enqueue', '>' || registered.initial);
    if registered.wakeup = 'pointer' and registered.role = 'ready'
        and exists (select from tenure.published_queue as p where p.queue = enqueue.queue) then
        insert into tenure.outbox (job_id, contract, queue, publish_at, due_at)
        values (new_id, enqueue.contract, enqueue.queue, due, due);
    end if;
    -- PostgreSQL sends equal notifications of a transaction once. None when its queue is half full: the commit would fail
    -- on a full one.
    if enqueue.notify and due <= t and pg_notification_queue_usage() < 0.5 then
        perform pg_notify('tenure', enqueue.contract || ':' || enqueue.queue);
    end if;
    return new_id;
end
$$;

-- A database with separate roles: its app goes on without `tenure migrate --grants`.
do $$
begin
    if exists (select from pg_namespace where nspname = 'tenure' and nspowner = to_regrole('tenure_owner')) then
        grant insert, update, delete on tenure.tally, tenure.tally_group, tenure.rollup, tenure.refusal to tenure_app;
    end if;
end
$$;
