-- These holders' failures will end their jobs, once the effects are undone: keep each on its row, and say so in the log.
--
-- The gate has judged them; the fence is asked again, and a failure that waits already stays the first one. From here on no
-- effect is recorded, so what is read after this statement is all there is to undo.
with locked as materialized (
    select asked.n, asked.trigger, asked.reason, asked.error, asked.key, asked.hash, row.*,
           (row.claims, row.lease_token) is not distinct from (asked.claims, asked.token) as proven
    from unnest(
        :ids::bigint[], :claims::integer[], :tokens::uuid[], :triggers::text[], :reasons::text[], :errors::jsonb[],
        :keys::text[], :hashes::text[]
    ) with ordinality as asked (id, claims, token, trigger, reason, error, key, hash, n)
    cross join lateral (
        select id, state, role, claims, counter, lease_token, lease_owner, lease_expires_at, last_heartbeat_at,
               heartbeat_ms, updated_at, pending
        from tenure.job
        where job.id = asked.id
        for update
    ) as row
),
told as materialized (
    select clocked.*, greatest(t, updated_at + interval '1 microsecond') as ts,
           proven and not (:forfeits::boolean and (
               coalesce(lease_expires_at < t, false)
               or coalesce(last_heartbeat_at + :missed::integer * coalesce(heartbeat_ms, :heartbeat_ms::integer)
                           * interval '1 millisecond' < t, false))) as holds
    from (select locked.*, clock_timestamp() as t from locked) as clocked
),
kept as (
    update tenure.job
    set pending = jsonb_build_object('trigger', told.trigger, 'reason', told.reason, 'error', told.error),
        seq = job.seq + 1, updated_at = told.ts
    from told
    where job.id = any (array[told.id]) and told.holds and told.pending is null
    returning told.*, job.seq, job.max_attempts
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
select n, id, state, role, claims, counter, ts, holds from told
