-- Which of these held jobs end well, just like that? One hop to the end, and nothing to tell but a result.
--
-- The short way for what nearly every job does last; law 1's shape as in move.sql: lock by id, in the order of the
-- sorted array; then read the clock, once per row, above the lock; then judge the lease by it. What stands in the row
-- alone is judged while it is locked, since whoever waited for a row sees it as it then is. A job that is not answered
-- here was not moved: it goes through the gate, which says why, or moves it: so does one that changed while it was waited
-- for, because its new place is out of this statement's sight.
with locked as materialized (
    select asked.n, asked.result, row.*
    from (
        select * from unnest(:ids::bigint[], :claims::integer[], :tokens::uuid[], :results::jsonb[])
                      with ordinality as each (id, claims, token, result, n)
        limit (select :size::bigint) -- all: without it a plan for any number of jobs looks so dear that none is ever kept
    ) as asked
    cross join lateral (
        select ctid as tid, updated_at, lease_expires_at, last_heartbeat_at, heartbeat_ms
        from tenure.job
        where job.id = asked.id and job.claims = asked.claims and job.lease_token = asked.token
          and contract = :contract::text and version = :version::text and state = any (:path_source::text[])
          and pending is null and undoable is null
        for update
    ) as row
),
gone as (
    delete from tenure.job using (
        select n, tid, result, updated_at, lease_expires_at, last_heartbeat_at, heartbeat_ms, clock_timestamp() as t
        from locked
        offset 0 -- the clock is read once
    ) as held
    where job.ctid = held.tid
      and not (:forfeits::boolean and (
          coalesce(held.lease_expires_at < t, false)
          or coalesce(held.last_heartbeat_at + :missed::integer * coalesce(held.heartbeat_ms, :heartbeat_ms::integer)
                      * interval '1 millisecond' < t, false)))
    -- First what most readers want: whoever reads a column of such a row has to pass those before it.
    returning n, greatest(t, held.updated_at + interval '1 microsecond') as ts, job.id, job.seq + 1 as seq, job.claims,
              job.counter, job.max_attempts, job.state, job.lease_owner, job.due_at, job.created_at,
              job.first_started_at, job.started_at, job.last_heartbeat_at, job.cancel_requested_at, job.origin_letter,
              job.lease_token, job.raises, job.priority, job.queue, job.type, job.tenant_id, job.created_by,
              job.trace_id, job.correlation_id, job.idempotency_key, job.payload, job.last_error, job.progress,
              job.checkpoint, held.result as given
),
finished as (
    insert into tenure.job_done (
        id, due_at, created_at, updated_at, first_started_at, started_at, finished_at, last_heartbeat_at,
        cancel_requested_at, origin_letter, lease_token, seq, claims, raises, counter, max_attempts, priority, contract,
        version, state, role, queue, type, tenant_id, created_by, trace_id, correlation_id, idempotency_key, payload,
        last_error, result, progress, checkpoint)
    select id, due_at, created_at, ts, first_started_at, started_at, ts, last_heartbeat_at, cancel_requested_at,
           origin_letter, lease_token, seq, claims, raises, counter, max_attempts, priority, :contract::text,
           :version::text, :end_state::text, 'done', queue, type, tenant_id, created_by, trace_id, correlation_id,
           idempotency_key, payload, last_error, given, progress, checkpoint
    from gone
),
logged as (
    insert into tenure.event (job_id, ts, seq, claims, counter, max_attempts, contract, trigger, from_state, to_state,
                              actor)
    select id, ts, seq, claims, counter, max_attempts, :contract::text, 'succeed', state, :end_state::text,
           coalesce(lease_owner, 'unknown')
    from gone
)
select n, state, counter, ts from gone
