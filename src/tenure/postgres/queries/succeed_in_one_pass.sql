-- Finish these held jobs where success is one hop to the end, and a holder's lease is valid until it is taken.
-- Rendered from templates/succeed_in_one_pass.template by `python -m tests.postgres.render`: change the template.
--
-- As succeed.sql, for contracts under which no time decides: each condition is about the row alone. So no step that locks
-- comes before the move. After waiting for a transaction that changed the row, PostgreSQL tests the conditions again on the
-- new version; after waiting for one that only locked it, the row is what it was. The clock is read above the lock: RETURNING is
-- computed when the row is deleted. The array is sorted by id, and rows are deleted, and so locked, in its order.
-- A job without a row in the answer was not moved: it goes through the gate. A job of a flow is left to succeed_in_flow.sql.
with deleted as (
    delete from tenure.job using (
        select * from unnest(:ids::bigint[], :claims::integer[], :tokens::uuid[], :results::jsonb[])
                      with ordinality as each (id, claims, token, result, n)
        limit (select :size::bigint) -- all: without it a plan for any number of jobs looks so dear that none is ever kept
    ) as call
    where job.id = any (array[call.id]) -- the planner cannot order a join by it
      and tenure.is_holder(job.claims, job.lease_token, call.claims, call.token)
      and job.contract = :contract::text and job.version = :version::text and job.state = any (:path_source::text[])
      and job.pending is null and job.undoable is null and job.flow_node is null
    -- The columns that are read most come first: reading a column passes those before it.
    returning n, greatest(clock_timestamp(), job.updated_at + interval '1 microsecond') as ts, job.id, job.seq + 1 as seq,
              job.claims,
              job.counter, job.max_attempts, job.state, job.lease_owner, job.due_at, job.created_at,
              job.first_started_at, job.started_at, job.last_heartbeat_at, job.cancel_requested_at, job.origin_letter,
              job.lease_token, job.raises, job.priority, job.queue, job.type, job.tenant_id, job.created_by,
              job.trace_id, job.correlation_id, job.idempotency_key, job.payload, job.last_error, job.progress,
              job.checkpoint, job.first_failed_at, call.result as given
),
finished as (
    insert into tenure.job_done (
        id, due_at, created_at, updated_at, first_started_at, started_at, finished_at, last_heartbeat_at,
        cancel_requested_at, origin_letter, lease_token, seq, claims, raises, counter, max_attempts, priority, contract,
        version, state, role, queue, type, tenant_id, created_by, trace_id, correlation_id, idempotency_key, payload,
        last_error, result, progress, checkpoint, first_failed_at
    )
    select id, due_at, created_at, ts, first_started_at, started_at, ts, last_heartbeat_at, cancel_requested_at,
           origin_letter, lease_token, seq, claims, raises, counter, max_attempts, priority, :contract::text,
           :version::text, :end_state::text, 'done', queue, type, tenant_id, created_by, trace_id, correlation_id,
           idempotency_key, payload, last_error, given, progress, checkpoint, first_failed_at
    from deleted
),
logged as (
    insert into tenure.event (job_id, ts, seq, claims, counter, max_attempts, contract, trigger, from_state, to_state,
                              actor, trace_id, correlation_id)
    select id, ts, seq, claims, counter, max_attempts, :contract::text, 'succeed', state, :end_state::text,
           coalesce(lease_owner, 'unknown'), case when :logs_trace::boolean then trace_id end,
           case when :logs_correlation::boolean then correlation_id end
    from deleted
),
tallied as (
    insert into tenure.tally (at, number, seconds, bucket, ended, contract, type, tenant_id, queue, trigger, path)
    select max(ts), count(*), sum(seconds), bucket, true, :contract::text, type, tenant_id, queue, 'succeed', state || '>' || :end_state::text
    from (
        select ts, type, tenant_id, queue, state, seconds, tenure.duration_bucket(seconds) as bucket
        from (
            select ts, type, tenant_id, queue, state, date_part('epoch', ts - started_at) as seconds from deleted
        ) as ran
    ) as one
    group by type, tenant_id, queue, state, bucket
)
select n, state, counter, ts from deleted
