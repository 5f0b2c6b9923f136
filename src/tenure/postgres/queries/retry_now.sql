-- Make these jobs due now that wait for their retry. Any other is not changed; its row in the answer says why.
--
-- The shape is that of finish.sql: lock, then the clock, then the guard. State and attempts stay, so it is no hop; exactly
-- one log row is written. `:promoted` are the waiting states that upkeep ends when the time has come.
with locked as materialized (
    select call.n, row.*
    from unnest(:ids::bigint[]) with ordinality as call (id, n)
    cross join lateral (
        select id, state, role, claims, due_at, updated_at from tenure.job where job.id = call.id for update
    ) as row
),
decided as materialized (
    select n, id, state, t, greatest(t, updated_at + interval '1 microsecond') as ts,
           case when claims = 0 or not (role = 'ready' or role = 'waiting' and state = any (:promoted::text[])) then 'state'
                when due_at <= t or due_at is null then 'due'
           end as refusal
    from (select locked.*, clock_timestamp() as t from locked offset 0) as clocked
),
changed as (
    update tenure.job
    set due_at = decided.t, seq = job.seq + 1, updated_at = decided.ts,
        -- This log row shows as no event. The next row that does names the one before this run as its cause.
        hidden = int4range(case when upper(job.hidden) = job.seq + 1 then lower(job.hidden) else job.seq + 1 end, job.seq + 2)
    from decided
    where job.id = any (array[decided.id]) and decided.refusal is null
    returning decided.n, decided.id, decided.ts, decided.state, job.seq, job.claims, job.counter, job.max_attempts, job.contract
),
logged as (
    insert into tenure.event (job_id, ts, seq, hop, claims, counter, max_attempts, contract, trigger, from_state, to_state,
                              actor, reason)
    select id, ts, seq, false, claims, counter, max_attempts, contract, 'retried_now', state, state, :actor::text, :reason::text
    from changed
)
select n, id, state, refusal from decided
