-- Enqueue a job from SQL: from a trigger, or from any language, in the transaction of the caller.
--
-- The rules are those of the library: the same checks, defaults, keys and wake-ups. The caller needs the rights of
-- tenure_app. Errors: 22023 a wrong value, 42704 an unknown contract, 54000 a payload that is too large, 23505 a key that
-- stands for other work, 2200H no id range left.

-- A text as Python's json.dumps writes it: in ASCII.
create function tenure.ascii_json(value text) returns text
    language plpgsql immutable strict parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    quoted constant text := replace(to_json(value)::text, chr(127), '\u007f');
begin
    if octet_length(quoted) = char_length(quoted) then
        return quoted;
    end if;
    return (
        select string_agg(case
                   when point < 128 then sign
                   when point < 65536 then '\u' || lpad(to_hex(point), 4, '0')
                   else '\u' || to_hex(55296 + ((point - 65536) >> 10)) || '\u' || to_hex(56320 + ((point - 65536) & 1023))
               end, '' order by n)
        from string_to_table(quoted, null) with ordinality as each (sign, n), lateral ascii(sign) as point
    );
end
$$;

-- A value as Python's json.dumps(value, sort_keys=True) writes it: the hash of a key's work is made of that. A number with
-- a point is a float there. One exception: jsonb does not tell a float from 1e16 on from an integer.
create function tenure.sorted_json(value jsonb) returns text
    language plpgsql immutable strict parallel safe set search_path = pg_catalog, pg_temp set extra_float_digits = 1 as $$
declare
    number text;
    short text;
begin
    case jsonb_typeof(value)
        when 'object' then
            return '{' || coalesce((
                select string_agg(tenure.ascii_json(name) || ': ' || tenure.sorted_json(part), ', ' order by name collate "C")
                from jsonb_each(value) as each (name, part)), '') || '}';
        when 'array' then
            return '[' || coalesce((
                select string_agg(tenure.sorted_json(part), ', ' order by n)
                from jsonb_array_elements(value) with ordinality as each (part, n)), '') || ']';
        when 'string' then
            return tenure.ascii_json(value #>> '{}');
        when 'number' then
            number := value #>> '{}';
            if position('.' in number) = 0 or abs(number::numeric) >= 1e16 then
                return number;
            end if;
            short := number::double precision::text;
            if short::numeric <> number::numeric then -- more digits than a float has
                return number;
            end if;
            if abs(number::numeric) < 0.0001 and number::numeric <> 0 then
                return short;
            end if;
            short := short::numeric::text;
            return case when position('.' in short) = 0 then short || '.0' else short end;
        else
            return value::text;
    end case;
end
$$;

-- Refuse a text that is empty or too long; NULL passes.
create function tenure.check_name(field text, value text, longest integer) returns void
    language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
begin
    if value !~ '\S' then
        raise exception '% must be a non-empty string, not %', field, quote_literal(value)
            using errcode = 'invalid_parameter_value', hint = 'Next: give it a name';
    end if;
    if char_length(value) > longest then
        raise exception '% has % characters; at most % are allowed', field, char_length(value), longest
            using errcode = 'invalid_parameter_value', hint = 'Next: shorten it';
    end if;
end
$$;

-- Refuse a payload that is larger or deeper than the library allows. Its size is that of JSON without blanks.
create function tenure.check_payload(payload jsonb) returns void
    language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
declare
    longest constant integer := 1048576;
    written constant text := payload::text;
    size integer := octet_length(written);
    bare text;
begin
    if size > longest then
        -- Outside of strings, PostgreSQL writes a blank after each comma and colon.
        bare := regexp_replace(written, '"[^"\\]*(?:\\.[^"\\]*)*"', '', 'g');
        size := size - (char_length(bare) - char_length(replace(bare, ' ', '')));
    end if;
    if size > longest then
        raise exception 'payload has % bytes; at most % are allowed', size, longest
            using errcode = 'program_limit_exceeded', hint = 'Next: store it elsewhere and send a reference';
    end if;
    if char_length(written) - char_length(translate(written, '[{', '')) > 200
        and jsonb_path_exists(payload, 'strict $.**{200} ? (@.type() == "object" || @.type() == "array")') then
        raise exception 'payload is nested deeper than 200 levels'
            using errcode = 'invalid_parameter_value', hint = 'Next: flatten it';
    end if;
end
$$;

create function tenure.enqueue(
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
-- What it does needs the rights of tenure_app on the tables, so a role without them gets a clear refusal.
revoke execute on function tenure.enqueue(
    text, jsonb, text, text, integer, text, timestamptz, interval, integer, text, text, text, boolean) from public;
