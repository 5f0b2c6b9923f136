-- Make one move of their holders for these held jobs: start, succeed, fail, snooze, hand back, cancel, end a compensation.
-- Rendered from templates/finish.template by `python -m tests.postgres.render`: change the template.
-- A job that may not move is not changed; its row in the answer says why.
--
-- The shape is law 1: lock by id, in the order of the sorted array; then read the clock, once per row, above the lock;
-- then every guard, the new row, the log and the reason of a refusal use that clock and the locked version. A guard in the
-- UPDATE's own WHERE would be judged before the wait. Contract values come as parameters: the paths that the verb may take,
-- the budget, the backoff. Steps carry few columns on purpose: a row is copied at each of them.
-- `id = any (array[…])` is `id = …` by which no join can be ordered: otherwise, with the statistics of a table that was
-- just emptied, the planner would walk the whole table once for each job.
with installation as materialized (
    -- Ids that the caller did not give are made of this (tenure.made_id, written out: a call costs more than a move).
    select id::text as prefix from tenure.installation
),
path as materialized (
    select trigger, source, choice, string_to_array(hops, '>') as hops, role, due, letter, bump, type
    from unnest(
        :path_trigger::text[], :path_source::text[], :path_choice::text[], :path_hops::text[], :path_role::text[],
        :path_due::text[], :path_letter::text[], :path_bump::integer[], :path_type::text[]
    ) as p (trigger, source, choice, hops, role, due, letter, bump, type)
),
locked as materialized (
    select call.n, call.result, call.delay_ms, call.key, call.hash, row.*,
           -- The failure that waited for its compensation comes from the row.
           case when :verb::text = 'compensated' then row.pending ->> 'trigger' else call.verdict end as verdict,
           case when :verb::text = 'compensated' then row.pending ->> 'reason' else call.reason end as reason,
           case when :verb::text = 'compensated' then nullif(row.pending -> 'error', 'null') else call.error end as error,
           tenure.is_holder(row.claims, coalesce(row.lease_token, row.finisher), call.claims, call.token) as is_holder
    from unnest(
        :ids::bigint[], :claims::integer[], :tokens::uuid[], :verdicts::text[], :reasons::text[], :errors::jsonb[],
        :results::jsonb[], :delays::bigint[], :keys::text[], :hashes::text[]
    ) with ordinality as call (id, claims, token, verdict, reason, error, result, delay_ms, key, hash, n)
    cross join lateral (
        select id, state, claims, raises, due_at, updated_at, started_at, lease_token, finisher, lease_owner, lease_expires_at,
               last_heartbeat_at, heartbeat_ms, backoff_base_ms, backoff_cap_ms, on_exhausted, pending,
               pending is not null as compensating,
               undoable is not null or pending is not null as undoable,
               contract = :contract::text and version = :version::text as is_ours,
               tenure.has_budget(claims, max_attempts, raises, :extra::integer) as in_budget,
               cancel_requested_at is not null as cancelling
        from tenure.job
        where job.id = call.id
        for update
    ) as row
),
decided as materialized (
    select n, id, chosen.state, claims, reason, result, due_at, lease_owner, started_at, is_holder,
           key, hash, t, chosen.trigger, path.hops, undoable,
           -- Effects that could not be undone keep the failure for which they should have been.
           case when compensating and chosen.trigger in ('compensation_failed', 'dead_letter')
                then coalesce(error, '{}') || jsonb_build_object('failure', pending -> 'error') else error end as error,
           path.role as to_role, path.letter, path.bump, path.type as event_type,
           greatest(t, updated_at + interval '1 microsecond') as ts,
           coalesce(:actor::text, lease_owner, 'unknown') as actor,
           -- A failure's reason is that of its dead letter; a retry writes none.
           coalesce(case when not (:verb::text = 'fail' and chosen.trigger = 'retry') then reason end,
                    case when path.type is not null then chosen.trigger end) as why,
           case path.due
               when 'backoff' then tenure.backoff_ms(
                   -- The claim's numbers.
                   id, claims, raises, coalesce(backoff_base_ms, :base_ms::bigint), :factor::double precision,
                   coalesce(backoff_cap_ms, :cap_ms::bigint),
                   :jitter_form::text, :jitter_low::double precision, :jitter_high::double precision,
                   :cap_after_jitter::boolean)
               when 'given' then coalesce(delay_ms, 0)
               when 'now' then 0
           end as wait_ms,
           case
               when not is_ours then 'contract'
               when not is_holder or :forfeits::boolean and (expired or orphaned) then 'stale'
               when path.hops is null then 'state'
               when :verb::text in ('compensated', 'compensation_failed') and not compensating then 'state'
               when compensating and chosen.trigger in ('succeed', 'snooze', 'retry') then 'compensating'
               -- The holder's effects are undone before the job ends badly, under the same lease.
               when undoable and path.role in ('done', 'settling') and chosen.trigger <> 'compensation_failed'
                   and :verb::text in ('fail', 'cancel', 'snooze', 'hand_back') then 'compensate'
           end as refusal
    from (
        select clocked.*,
               tenure.lease_expired(lease_expires_at, t) as expired,
               tenure.heartbeats_missed(
                   last_heartbeat_at, coalesce(heartbeat_ms, :heartbeat_ms::integer), :missed::integer, t) as orphaned,
               case
                   -- Effects are left to the next holder to undo; where no claim is left, a person looks.
                   when compensating and :verb::text = 'hand_back' and not :hands_back::boolean
                       then case when in_budget then 'expire' else 'compensation_failed' end
                   when compensating and :verb::text = 'fail' then pending ->> 'trigger'
                   -- A soft cancel turns every way back, and every failure, into the cancel path.
                   when cancelling and :verb::text in ('fail', 'compensated', 'snooze', 'hand_back') then 'cancel'
                   when :verb::text = 'compensated' then verdict
                   when :verb::text = 'fail'
                       then case when verdict <> 'retry' then verdict when in_budget then 'retry' else 'exhaust' end
                   -- Without a path of its own, handing back is letting the lease expire.
                   when :verb::text = 'hand_back' and not :hands_back::boolean
                       then case when in_budget then 'expire' else 'expire_at_cap' end
                   else :verb::text
               end as trigger
        from (select locked.*, clock_timestamp() as t from locked) as clocked
        offset 0 -- the trigger is chosen once, not in each place that uses it
    ) as chosen
    left join path on path.trigger = chosen.trigger and path.source = chosen.state
        -- Where the contract gives the choice, a spent budget ends where the claim says.
        and (path.choice is null or path.choice = case
                 when chosen.trigger = 'exhaust' and on_exhausted = any (:path_choice::text[]) then on_exhausted else '' end)
),
moved as (
    update tenure.job
    set state = decided.hops[cardinality(decided.hops)], role = decided.to_role, seq = job.seq + cardinality(decided.hops),
        updated_at = decided.ts + (cardinality(decided.hops) - 1) * interval '1 microsecond',
        counter = job.counter + decided.bump,
        raises = job.raises + (decided.trigger in ('snooze', 'hand_back'))::integer,
        due_at = coalesce(decided.t + decided.wait_ms * interval '1 millisecond', job.due_at),
        first_failed_at = coalesce(job.first_failed_at, case when decided.error is not null then decided.ts end),
        last_error = coalesce(tenure.failure(decided.error, decided.ts, job.counter + decided.bump, job.max_attempts,
                                             decided.to_role, decided.t, decided.wait_ms), job.last_error),
        -- The holder's start is its first heartbeat.
        last_heartbeat_at = case when decided.trigger = 'start' then decided.ts else job.last_heartbeat_at end,
        lease_token = case when decided.to_role in ('leased', 'active') then job.lease_token end,
        finisher = case when decided.to_role = 'settling' then job.lease_token end,
        lease_owner = case when decided.to_role in ('leased', 'active') then job.lease_owner end,
        lease_expires_at = case when decided.to_role in ('leased', 'active') then job.lease_expires_at end,
        -- A dead letter names the last lease, also of a job that waits when it is set aside.
        last_owner = case when decided.to_role in ('leased', 'active') then job.last_owner
                          else coalesce(job.lease_owner, job.last_owner) end,
        last_lease_expires_at = case when decided.to_role in ('leased', 'active') then job.last_lease_expires_at
                                     else coalesce(job.lease_expires_at, job.last_lease_expires_at) end,
        quarantined_at = null, quarantine_reason = null
    from decided
    where job.id = any (array[decided.id]) and decided.refusal is null and decided.to_role <> 'done'
    returning decided.*, job.seq - cardinality(decided.hops) as seq, job.counter, job.max_attempts, job.correlation_id,
              job.trace_id, job.hidden, job.type, job.tenant_id, job.queue
),
deleted as (
    delete from tenure.job using decided
    where job.id = any (array[decided.id]) and decided.refusal is null and decided.to_role = 'done'
    returning decided.*, job.seq, job.counter + decided.bump as counter, job.max_attempts, job.correlation_id,
              job.trace_id, job.created_at, job.first_started_at, job.last_heartbeat_at,
              coalesce(job.lease_owner, job.last_owner) as last_owner,
              coalesce(job.lease_expires_at, job.last_lease_expires_at) as last_lease_expires_at,
              job.cancel_requested_at, job.origin_letter, job.lease_token, job.finisher, job.raises, job.priority, job.queue,
              job.type, job.tenant_id, job.created_by, job.idempotency_key, job.payload, job.last_error, job.progress,
              job.checkpoint, job.hidden, job.flow_node,
              coalesce(job.first_failed_at, case when decided.error is not null then decided.ts end) as first_failed_at
),
-- The token of the holder that finished the job stays: a repeat of its call differs from another caller's late call.
finished as (
    insert into tenure.job_done (
        id, due_at, created_at, updated_at, first_started_at, started_at, finished_at, last_heartbeat_at,
        cancel_requested_at, origin_letter, lease_token, seq, claims, raises, counter, max_attempts, priority, contract,
        version, state, role, queue, type, tenant_id, created_by, trace_id, correlation_id, idempotency_key, payload,
        last_error, result, progress, checkpoint, first_failed_at, flow_node)
    select id, due_at, created_at, ts + (cardinality(hops) - 1) * interval '1 microsecond', first_started_at, started_at,
           ts + (cardinality(hops) - 1) * interval '1 microsecond', last_heartbeat_at, cancel_requested_at, origin_letter,
           lease_token,
           seq + cardinality(hops), claims, raises, counter, max_attempts, priority, :contract::text, :version::text,
           hops[cardinality(hops)], 'done', queue, type, tenant_id, created_by, trace_id, correlation_id, idempotency_key,
           payload, coalesce(tenure.failure(error, ts, counter, max_attempts, to_role, t, wait_ms), last_error), result,
           progress, checkpoint, first_failed_at, flow_node
    from deleted
),
-- The end of a node: the transaction that advances its flow reads it.
ended_in_flow as (
    insert into tenure.flow_end (flow_id, job_id, node, at, outcome, state, result)
    select node.flow_id, deleted.id, node.id, ts + (cardinality(hops) - 1) * interval '1 microsecond',
           case when hops[cardinality(hops)] = any (:success_states::text[]) then 'succeeded'
                when trigger = 'cancel' then 'cancelled' else 'failed' end,
           hops[cardinality(hops)], case when node.feeds then deleted.result end
    from deleted cross join lateral (
        select id, flow_id, feeds from tenure.flow_node where id = any (array[deleted.flow_node])
    ) as node
    where deleted.flow_node is not null
    returning job_id, flow_id
),
recorded as (
    insert into tenure.dead_letter (
        job_id, contract, tenant_id, type, queue, priority, max_attempts, reason_code, stage, last_error, counter, claims,
        last_owner, last_lease_expires_at, correlation_id, trace_id, payload, failed_at)
    select id, :contract::text, tenant_id, type, queue, priority, max_attempts,
           coalesce(reason, letter),
           case when :stages::text[] is null or error ->> 'stage' = any (:stages::text[])
                then coalesce(error ->> 'stage', 'exec') else 'exec' end,
           coalesce(tenure.failure(error, ts, counter, max_attempts, to_role, t, wait_ms), last_error,
                    jsonb_build_object('message', letter)),
           counter, claims, last_owner, last_lease_expires_at,
           coalesce(correlation_id, md5((select prefix from installation) || ':' || 'correlation:' || id)),
           coalesce(trace_id, md5((select prefix from installation) || ':' || 'trace:' || id)), payload,
           coalesce(first_failed_at, ts)
    from deleted
    where letter is not null
),
logged as (
    insert into tenure.event (job_id, ts, seq, claims, counter, max_attempts, contract, trigger, from_state, to_state,
                              actor, reason, facts, type, hidden, correlation_id, trace_id
                              , request_key, request_hash, answer
                              )
    select id, ts + (k - 1) * interval '1 microsecond', seq + k, claims, counter, max_attempts, :contract::text, trigger,
           case when k = 1 then state else hops[k - 1] end, hops[k], actor, why,
           case when k = 1 and (error is not null or wait_ms is not null or undoable)
               then jsonb_strip_nulls(jsonb_build_object(
               'error', error, 'delay_ms', wait_ms, 'due_at', tenure.iso(t + wait_ms * interval '1 millisecond'),
               'terminal', to_role = 'done'))
           end,
           event_type, case when k = 1 and upper(hidden) = seq + 1 then upper(hidden) - lower(hidden) end,
           -- The ids are made where they are missing, for contracts that index their log by them.
           case when event_type is not null
                then coalesce(correlation_id, md5((select prefix from installation) || ':' || 'correlation:' || id))
                when :logs_correlation::boolean then correlation_id end,
           case when event_type is not null
                then coalesce(trace_id, md5((select prefix from installation) || ':' || 'trace:' || id))
                when :logs_trace::boolean then trace_id end
           , case when k = 1 then key end, case when k = 1 then hash end,
           case when k = 1 and key is not null then jsonb_build_object(
               'state', hops[cardinality(hops)], 'role', to_role, 'delay_ms', wait_ms,
               'due_at', tenure.iso(t + wait_ms * interval '1 millisecond'))
           end
    from (
        select id, t, ts, seq, claims, counter, max_attempts, trigger, state, hops, actor, why, error, wait_ms, to_role,
               key, hash,
               event_type, hidden, correlation_id, trace_id, undoable, generate_series(1, cardinality(hops)) as k
        from moved
        union all
        select id, t, ts, seq, claims, counter, max_attempts, trigger, state, hops, actor, why, error, wait_ms, to_role,
               key, hash,
               event_type, hidden, correlation_id, trace_id, undoable, generate_series(1, cardinality(hops)) as k
        from deleted
    ) as hopped
),
-- What ends a run counts how long it took.
tallied as (
    insert into tenure.tally (at, number, seconds, bucket, ended, contract, type, tenant_id, queue, trigger, path)
    select max(ts), count(*), sum(seconds), bucket, ended, :contract::text, type, tenant_id, queue, trigger,
           array_to_string(state || hops, '>')
    from (
        select ran.*, tenure.duration_bucket(seconds) as bucket
        from (
            select ts, type, tenant_id, queue, trigger, state, hops, false as ended
                   , case when to_role not in ('leased', 'active') then date_part('epoch', ts - started_at) end as seconds
            from moved
            union all
            select ts, type, tenant_id, queue, trigger, state, hops, true
                   , date_part('epoch', ts - started_at)
            from deleted
        ) as ran
    ) as one
    group by type, tenant_id, queue, trigger, state, hops, ended, bucket
)
select n, refusal, id, trigger, state, hops[cardinality(hops)] as to_state, to_role, claims, counter, ts,
       t + wait_ms * interval '1 millisecond' as due_at, wait_ms, null::text as holder, null::timestamptz as since,
       null::bigint as flow_id
from moved
union all
select n, refusal, id, trigger, state, hops[cardinality(hops)], to_role, claims, counter, ts, null, null, null, null,
       -- Read once: a search for each job would be slow for many.
       case when flow_node is not null then ((select jsonb_object_agg(job_id, flow_id) from ended_in_flow) ->> id::text)::bigint end
from deleted
union all
-- A caller whose own proof still fits has lost its lease by expiry, and no other caller holds the job.
select n, refusal, id, trigger, state, null, null, claims, null, t, due_at, null,
       case when not is_holder then lease_owner end, started_at, null
from decided
where refusal is not null
