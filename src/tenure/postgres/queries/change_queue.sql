-- Put these jobs into another queue, where they are not held. A held job is not changed; its row in the answer says so.
--
-- The shape is that of finish.sql: lock, then the clock, then the guard. State, due time and attempts stay, so it is no hop;
-- exactly one log row is written. A job that is in that queue already is not changed.
with locked as materialized (
    select call.n, row.*
    from unnest(:ids::bigint[]) with ordinality as call (id, n)
    cross join lateral (
        select id, state, role, queue, updated_at from tenure.job where job.id = call.id for update
    ) as row
),
decided as materialized (
    select n, id, state, queue as before, role not in ('ready', 'waiting') as is_held,
           greatest(clock_timestamp(), updated_at + interval '1 microsecond') as ts
    from (select * from locked offset 0) as clocked
),
changed as (
    update tenure.job
    set queue = :queue::text, seq = job.seq + 1, updated_at = decided.ts,
        -- This log row shows as no event. The next row that does names the one before this run as its cause.
        hidden = int4range(case when upper(job.hidden) = job.seq + 1 then lower(job.hidden) else job.seq + 1 end, job.seq + 2)
    from decided
    where job.id = any (array[decided.id]) and not decided.is_held and decided.before <> :queue::text
    returning decided.n, decided.id, decided.ts, decided.state, decided.before, job.seq, job.claims, job.counter, job.max_attempts, job.contract,
              job.type, job.tenant_id
),
logged as (
    insert into tenure.event (job_id, ts, seq, hop, claims, counter, max_attempts, contract, trigger, from_state, to_state,
                              actor, reason, facts)
    select id, ts, seq, false, claims, counter, max_attempts, contract, 'queue_changed', state, state, :actor::text,
           'from queue ' || before || ' to ' || :queue::text || coalesce(': ' || :reason::text, ''),
           jsonb_build_object('from', before, 'to', :queue::text)
    from changed
),
-- Gone from the one queue, come into the other.
tallied as (
    insert into tenure.tally (at, number, contract, type, tenant_id, queue, trigger, path)
    select max(ts), count(*), contract, type, tenant_id, side.queue, 'queue_changed', side.path
    from changed cross join lateral (
        values (changed.before, changed.state || '>'), (:queue::text, '>' || changed.state)
    ) as side (queue, path)
    group by contract, type, tenant_id, side.queue, side.path
)
select n, id, state, before, is_held from decided
