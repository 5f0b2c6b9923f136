-- Keep the failures of these holders on their rows until the effects are undone, and log that.
--
-- The gate has decided already; the fence is tested again, and a failure that waits already stays. From here on no effect is
-- recorded, so the effects that are read after this statement are all that must be undone.
with locked as materialized (
    select call.n, call.trigger, call.reason, call.error, call.key, call.hash, row.*,
           tenure.is_holder(row.claims, row.lease_token, call.claims, call.token) as is_holder
    from unnest(
        :ids::bigint[], :claims::integer[], :tokens::uuid[], :triggers::text[], :reasons::text[], :errors::jsonb[],
        :keys::text[], :hashes::text[]
    ) with ordinality as call (id, claims, token, trigger, reason, error, key, hash, n)
    cross join lateral (
        select id, state, role, claims, counter, lease_token, lease_owner, lease_expires_at, last_heartbeat_at,
               heartbeat_ms, updated_at, pending
        from tenure.job
        where job.id = call.id
        for update skip locked
    ) as row
),
decided as materialized (
    select clocked.*, greatest(t, updated_at + interval '1 microsecond') as ts,
           is_holder and not (:forfeits::boolean and (
               tenure.lease_expired(lease_expires_at, t)
               or tenure.heartbeats_missed(
                   last_heartbeat_at, coalesce(heartbeat_ms, :heartbeat_ms::integer), :missed::integer, t))) as holds
    from (select locked.*, clock_timestamp() as t from locked) as clocked
),
kept as (
    update tenure.job
    set pending = jsonb_build_object('trigger', decided.trigger, 'reason', decided.reason, 'error', decided.error),
        seq = job.seq + 1, updated_at = decided.ts, first_failed_at = coalesce(job.first_failed_at, decided.ts),
        -- This log row shows as no event. The next row that does names the one before this run as its cause.
        hidden = int4range(case when upper(job.hidden) = job.seq + 1 then lower(job.hidden) else job.seq + 1 end, job.seq + 2)
    from decided
    where job.id = any (array[decided.id]) and decided.holds and decided.pending is null
    returning decided.*, job.seq, job.max_attempts
),
logged as (
    insert into tenure.event (job_id, ts, seq, hop, claims, counter, max_attempts, contract, trigger, from_state, to_state,
                              actor, reason, facts, request_key, request_hash, answer)
    select id, ts, seq, false, claims, counter, max_attempts, :contract::text, 'compensating', state, state, lease_owner,
           reason, jsonb_strip_nulls(jsonb_build_object('error', error, 'ends_by', trigger)), key, hash,
           case when key is not null then jsonb_build_object('state', state, 'role', role, 'delay_ms', null, 'due_at', null)
           end
    from kept
)
select n, id, state, role, claims, counter, ts, holds from decided
