-- The same answers as before, several times sooner: a failing job asks each of these once or twice.
-- An SQL function that is no plain expression is planned and run like a query of its own, for each row.

-- JSON shows times as ISO 8601 in UTC, to the microsecond, everywhere. Stable, like what it calls: so it is inlined.
create or replace function tenure.iso(at timestamptz) returns text
    language sql stable parallel safe
    return to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');

-- A number in [0, 1) that depends on the job and the claim alone.
create or replace function tenure.fraction(job_id bigint, claims integer) returns double precision
    language plpgsql immutable parallel safe as $$
declare
    hash constant bytea := sha256(convert_to(job_id || ':' || claims, 'UTF8'));
begin
    return (get_byte(hash, 0) * 65536 + get_byte(hash, 1) * 256 + get_byte(hash, 2)) / 16777216.0::double precision;
end
$$;

-- base·factor^(n-1), capped, spread by the fraction above: a replay of the same history waits as long.
create or replace function tenure.backoff_ms(
    job_id bigint, claims integer, raises integer, base_ms bigint, factor double precision, cap_ms bigint,
    jitter_form text, jitter_low double precision, jitter_high double precision, cap_after_jitter boolean
) returns bigint
    language plpgsql immutable parallel safe as $$
declare
    centre constant double precision :=
        least(cap_ms, base_ms * power(factor, least(greatest(claims - raises - 1, 0), 100)));
    u constant double precision := tenure.fraction(job_id, claims);
    ms constant double precision := case jitter_form
        when 'add' then centre + floor(jitter_low + u * (jitter_high - jitter_low + 1))
        else floor(centre * (jitter_low + u * (jitter_high - jitter_low)) + 0.5)
    end;
begin
    return greatest(1, case when cap_after_jitter then least(cap_ms, ms) else ms end)::bigint;
end
$$;

-- A failure as the job's row keeps it: the facts as given, when and at which attempt, and what follows from it.
create or replace function tenure.failure(
    error jsonb, ts timestamptz, attempt integer, max_attempts integer, role text, t timestamptz, wait_ms bigint
) returns jsonb
    language plpgsql stable parallel safe as $$
begin
    if error is null then
        return null;
    end if;
    error := error || jsonb_build_object(
        'ts', tenure.iso(ts), 'attempt', attempt, 'max_attempts', max_attempts, 'terminal', role in ('done', 'settling'));
    if role in ('ready', 'waiting') and wait_ms is not null then
        error := error || jsonb_build_object(
            'delay_ms', wait_ms, 'due_at', tenure.iso(t + wait_ms * interval '1 millisecond'));
    end if;
    return error;
end
$$;

-- Ids that nobody gave are made from the job's id and the installation's: stored nowhere, the same everywhere.
create or replace function tenure.made_id(kind text, job_id bigint) returns text
    language plpgsql stable parallel safe as $$
begin
    return md5((select installation.id from tenure.installation)::text || ':' || kind || ':' || job_id);
end
$$;
