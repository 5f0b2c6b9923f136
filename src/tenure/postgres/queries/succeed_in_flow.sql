-- Finish these held jobs where success is one hop to the end and only a result is written.
-- Rendered from templates/succeed.template by `python -m tests.postgres.render`: change the template.
--
-- The short way for the last move of nearly every job; law 1's shape as in finish.sql: lock by id, in the order of the
-- sorted array; then read the clock, once per row, above the lock; then test the lease by it. Conditions on the row alone are
-- tested while it is locked, because a statement that waited for a row sees its new version. A job without a row in the
-- answer was not moved: it goes through the gate, which says why, or moves it. So does a job that changed during the wait,
-- because this statement cannot see its new place.
-- This one ends jobs of flows, and records their ends; jobs outside of flows are left to succeed.sql.
with locked as materialized (
    select call.n, call.result, row.*
    from (
        select * from unnest(:ids::bigint[], :claims::integer[], :tokens::uuid[], :results::jsonb[])
                      with ordinality as each (id, claims, token, result, n)
        limit (select :size::bigint) -- all: without it a plan for any number of jobs looks so dear that none is ever kept
    ) as call
    cross join lateral (
        select ctid as tid, updated_at, lease_expires_at, last_heartbeat_at, heartbeat_ms, flow_node
        from tenure.job
        where job.id = call.id and tenure.is_holder(job.claims, job.lease_token, call.claims, call.token)
          and contract = :contract::text and version = :version::text and state = any (:path_source::text[])
          and pending is null and undoable is null and flow_node is not null
        for update
    ) as row
),
deleted as (
    delete from tenure.job using (
        select n, tid, result, updated_at, lease_expires_at, last_heartbeat_at, heartbeat_ms, clock_timestamp() as t
               , flow_id, feeds
        from locked
        left join lateral (
            select flow_id, feeds from tenure.flow_node where flow_node.id = any (array[locked.flow_node])
        ) as node on true
        offset 0 -- the clock is read once
    ) as held
    where job.ctid = held.tid
      and not (:forfeits::boolean and (
          tenure.lease_expired(held.lease_expires_at, t)
          or tenure.heartbeats_missed(
              held.last_heartbeat_at, coalesce(held.heartbeat_ms, :heartbeat_ms::integer), :missed::integer, t)))
    -- The columns that are read most come first: reading a column passes those before it.
    returning n, greatest(t, held.updated_at + interval '1 microsecond') as ts, job.id, job.seq + 1 as seq, job.claims,
              job.counter, job.max_attempts, job.state, job.lease_owner, job.due_at, job.created_at,
              job.first_started_at, job.started_at, job.last_heartbeat_at, job.cancel_requested_at, job.origin_letter,
              job.lease_token, job.raises, job.priority, job.queue, job.type, job.tenant_id, job.created_by,
              job.trace_id, job.correlation_id, job.idempotency_key, job.payload, job.last_error, job.progress,
              job.checkpoint, job.first_failed_at, held.result as given
              , job.flow_node, held.flow_id, held.feeds
),
finished as (
    insert into tenure.job_done (
        id, due_at, created_at, updated_at, first_started_at, started_at, finished_at, last_heartbeat_at,
        cancel_requested_at, origin_letter, lease_token, seq, claims, raises, counter, max_attempts, priority, contract,
        version, state, role, queue, type, tenant_id, created_by, trace_id, correlation_id, idempotency_key, payload,
        last_error, result, progress, checkpoint, first_failed_at
        , flow_node
    )
    select id, due_at, created_at, ts, first_started_at, started_at, ts, last_heartbeat_at, cancel_requested_at,
           origin_letter, lease_token, seq, claims, raises, counter, max_attempts, priority, :contract::text,
           :version::text, :end_state::text, 'done', queue, type, tenant_id, created_by, trace_id, correlation_id,
           idempotency_key, payload, last_error, given, progress, checkpoint, first_failed_at
           , flow_node
    from deleted
),
-- The end of a node: the transaction that advances its flow reads it.
ended_in_flow as (
    insert into tenure.flow_end (flow_id, job_id, node, at, outcome, state, result)
    select flow_id, id, flow_node, ts, 'succeeded', :end_state::text, case when feeds then given end
    from deleted
    where flow_id is not null
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
select n, state, counter, ts, flow_id from deleted
