-- May these jobs make this move? If so: make it, log it and say what became of them. If not: say why, change nothing.
--
-- The one gate for every move that may wait for a row. Its shape is law 1: lock by id, in the order of the sorted
-- array; then read the clock, once per row, above the lock; then every guard, the new row, the log and the reason of
-- a refusal use that clock and the locked version. A guard in the UPDATE's own WHERE would be judged before the wait.
-- Contract values come as parameters: the paths that this verb may take, the budget, the backoff.
-- Steps carry few columns on purpose: a row is copied at each of them.
-- `id = any (array[…])` is `id = …` that no join can be ordered by: else, with the statistics of a table that was just
-- emptied, the planner would walk the whole table once for each job.
with made as materialized (
    -- What the ids are made of that nobody gave (tenure.made_id, written out: a call costs more than a move).
    select id::text as by from tenure.installation
),
path as materialized (
    select trigger, source, choice, string_to_array(hops, '>') as hops, role, due, letter, bump, type
    from unnest(
        :path_trigger::text[], :path_source::text[], :path_choice::text[], :path_hops::text[], :path_role::text[],
        :path_due::text[], :path_letter::text[], :path_bump::integer[], :path_type::text[]
    ) as p (trigger, source, choice, hops, role, due, letter, bump, type)
),
-- What job types want otherwise than the contract: [backoff base, cap, end of a spent budget]. Read once, if at all.
own as materialized (
    select jsonb_object_agg(type, jsonb_build_array(backoff_base_ms, backoff_cap_ms, on_exhausted)) as by_type
    from tenure.job_type
    where contract = :contract::text
),
locked as materialized (
    select asked.n, asked.result, asked.delay_ms, asked.key, asked.hash, row.*,
           --taking: asked.claim_key, asked.owner,
           -- The failure that waited for its compensation comes from the row.
           case when :verb::text = 'compensated' then row.pending ->> 'trigger' else asked.verdict end as verdict,
           case when :verb::text = 'compensated' then row.pending ->> 'reason' else asked.reason end as reason,
           case when :verb::text = 'compensated' then nullif(row.pending -> 'error', 'null') else asked.error end as error,
           (row.claims, coalesce(row.lease_token, row.finisher)) is not distinct from (asked.claims, asked.token) as proven
    from unnest(
        :ids::bigint[], :claims::integer[], :tokens::uuid[], :verdicts::text[], :reasons::text[], :errors::jsonb[],
        :results::jsonb[], :delays::bigint[], :keys::text[], :hashes::text[]
        --taking: , :claim_keys::uuid[], :owners::text[]
    ) with ordinality as asked (
        id, claims, token, verdict, reason, error, result, delay_ms, key, hash,
        --taking: claim_key, owner,
        n
    )
    cross join lateral (
        select id, state, role, type, claims, raises, due_at, updated_at, started_at, lease_token, finisher,
               lease_owner, lease_expires_at, last_heartbeat_at, heartbeat_ms, pending, pending is not null as compensating,
               undoable is not null or pending is not null as undoable,
               -- Versions only ever add: every version of a contract claims in the same way.
               contract = :contract::text and (version = :version::text or :verb::text = 'claim') as ours,
               claims < greatest(1, max_attempts + :extra::integer) + raises as in_budget,
               cancel_requested_at is not null as cancelling
        from tenure.job
        where job.id = asked.id
        for update
    ) as row
),
told as materialized (
    select n, id, state, claims, reason, result, due_at, lease_owner, started_at, proven, key, hash, t, aim,
           aimed.type as task, path.hops, undoable,
           --taking: claim_key, owner,
           -- What could not be undone keeps the failure for which it should have been.
           case when compensating and aim in ('compensation_failed', 'dead_letter')
                then coalesce(error, '{}') || jsonb_build_object('failure', pending -> 'error') else error end as error,
           path.role as to_role, path.letter, path.bump, path.type as event_type,
           greatest(t, updated_at + interval '1 microsecond') as ts,
           coalesce(
               :actor::text,
               --taking: owner,
               lease_owner, 'unknown'
           ) as actor,
           -- A failure's reason is that of its dead letter; a retry writes none.
           coalesce(case when not (:verb::text = 'fail' and aim = 'retry') then reason end,
                    case when :verb::text = 'expire' then case when expired then 'lease_expired' else 'orphaned' end end,
                    case when path.type is not null then aim end) as why,
           case path.due
               when 'backoff' then tenure.backoff_ms(
                   id, claims, raises, coalesce(((select by_type from own) -> aimed.type ->> 0)::bigint, :base_ms::bigint),
                   :factor::double precision,
                   coalesce(((select by_type from own) -> aimed.type ->> 1)::bigint, :cap_ms::bigint), :jitter_form::text,
                   :jitter_low::double precision, :jitter_high::double precision, :cap_after_jitter::boolean)
               when 'given' then coalesce(delay_ms, 0)
               when 'now' then 0
           end as wait_ms,
           case
               when not ours then 'contract'
               --keyed: when key is not null and exists (
               --keyed:     select from tenure.event where event.job_id = aimed.id and event.request_key = aimed.key
               --keyed: ) then 'repeated'
               when :fenced::boolean and (not proven or :forfeits::boolean and (expired or orphaned)) then 'stale'
               when path.hops is null then 'state'
               -- A soft cancel asks a running handler to stop; where effects must be undone first, it asks the next holder.
               when :soft::boolean and (aimed.role = 'active' or undoable) then 'held'
               when aim = 'claim' and (coalesce(due_at, '-infinity') > t or lease_expires_at >= t) then 'not_due'
               when aim = 'reclaim' and not (expired and in_budget and not cancelling) then 'state'
               when :verb::text = 'expire' and not (expired or orphaned) then 'not_due'
               when aim = 'promote' and not coalesce(due_at <= t, false) then 'not_due'
               when :verb::text = 'transition' and aim = 'retry' and not in_budget then 'state'
               when :verb::text in ('compensated', 'compensation_failed') and not compensating then 'state'
               when compensating and aim in ('succeed', 'snooze', 'retry') then 'compensating'
               -- What the holder did for this job is undone before the job ends badly, under the same lease.
               when undoable and :fenced::boolean and path.role in ('done', 'settling') and aim <> 'compensation_failed'
                   and :verb::text in ('fail', 'cancel', 'snooze', 'hand_back') then 'compensate'
           end as refusal
    from (
        select clocked.*,
               coalesce(lease_expires_at < t, false) as expired,
               coalesce(last_heartbeat_at + :missed::integer * coalesce(heartbeat_ms, :heartbeat_ms::integer)
                        * interval '1 millisecond' < t, false) as orphaned,
               case
                   -- What must be undone is left to the next holder; where no claim is left, a person looks.
                   when undoable and (:verb::text = 'expire' or compensating and :verb::text = 'hand_back' and not :hands_back::boolean)
                       then case when in_budget then 'expire' else 'compensation_failed' end
                   when compensating and :verb::text = 'fail' then pending ->> 'trigger'
                   -- A soft cancel turns every way back, and every failure, into the cancel path.
                   when cancelling and :verb::text in ('fail', 'compensated', 'expire', 'snooze', 'hand_back') then 'cancel'
                   when :verb::text = 'compensated' then verdict
                   when :verb::text = 'fail'
                       then case when verdict <> 'retry' then verdict when in_budget then 'retry' else 'exhaust' end
                   when :verb::text = 'expire' then case when in_budget then 'expire' else 'expire_at_cap' end
                   when :verb::text = 'claim' then case when role = 'ready' then 'claim' else 'reclaim' end
                   when :verb::text = 'transition' then (
                       select trigger from path where source = clocked.state and hops[1] = :target::text limit 1)
                   -- Without a path of its own, handing back is letting the lease expire.
                   when :verb::text = 'hand_back' and not :hands_back::boolean
                       then case when in_budget then 'expire' else 'expire_at_cap' end
                   else :verb::text
               end as aim
        from (
            select locked.*, clock_timestamp() as t from locked
            -- A claim starts its leases when it has all its rows: no lease ends while it waits for a neighbour.
            --taking: where (select count(*) from locked) > 0
        ) as clocked
        offset 0 -- the aim is found once, not in each place that asks for it
    ) as aimed
    left join path on path.trigger = aim and path.source = aimed.state
        and (path.choice is null or path.choice = case
            when aim = 'exhaust' and (select by_type from own) -> aimed.type ->> 2 = any (:path_choice::text[])
                then (select by_type from own) -> aimed.type ->> 2
            else ''
        end)
),
-- A claim key is spent with the first job that it wins. Keys of several callers are spent in one order.
--taking: fresh as (
--taking:     insert into tenure.claim (key)
--taking:     select distinct claim_key from told where refusal is null order by claim_key
--taking:     on conflict do nothing
--taking:     returning key
--taking: ),
moved as (
    update tenure.job
    set state = told.hops[cardinality(told.hops)], role = told.to_role, seq = job.seq + cardinality(told.hops),
        updated_at = told.ts + (cardinality(told.hops) - 1) * interval '1 microsecond',
        counter = job.counter + told.bump, raises = job.raises + (told.aim in ('snooze', 'hand_back'))::integer,
        due_at = coalesce(told.t + told.wait_ms * interval '1 millisecond', job.due_at),
        last_error = coalesce(tenure.failure(told.error, told.ts, job.counter + told.bump, job.max_attempts, told.to_role,
                                             told.t, told.wait_ms), job.last_error),
        -- The holder's start is its first beat; an operator's is no sign of the holder's life.
        last_heartbeat_at = case when told.aim = 'start' and :fenced::boolean then told.ts else job.last_heartbeat_at end,
        lease_token = case when told.to_role in ('leased', 'active') then job.lease_token end,
        finisher = case when told.to_role <> 'settling' then null when :fenced::boolean then job.lease_token else job.finisher end,
        lease_owner = case when told.to_role in ('leased', 'active') then job.lease_owner end,
        lease_expires_at = case when told.to_role in ('leased', 'active') then job.lease_expires_at end
    from told
    where job.id = any (array[told.id]) and told.refusal is null and told.to_role <> 'done'
      --taking: and false
    returning told.*, job.seq - cardinality(told.hops) as seq, job.counter, job.max_attempts, job.correlation_id, job.trace_id
),
--taking: taken as (
--taking:     update tenure.job
--taking:     set state = told.hops[1], role = told.to_role, seq = job.seq + 1, updated_at = told.ts, claims = job.claims + 1,
--taking:         counter = job.counter + told.bump, started_at = told.ts,
--taking:         first_started_at = coalesce(job.first_started_at, told.ts), last_heartbeat_at = null,
--taking:         lease_token = told.claim_key, lease_owner = told.owner,
--taking:         lease_ms = coalesce(:lease_ms::integer, own.lease_ttl_sec * 1000), heartbeat_ms = own.heartbeat_sec * 1000,
--taking:         lease_expires_at = told.t + coalesce(:lease_ms::integer, own.lease_ttl_sec * 1000, :default_lease_ms::integer)
--taking:                                     * interval '1 millisecond'
--taking:     from told left join tenure.job_type as own on own.contract = :contract::text and own.type = told.task
--taking:     where job.id = any (array[told.id]) and told.refusal is null and told.claim_key in (select key from fresh)
--taking:     returning told.*, job.seq - 1 as seq, job.counter, job.max_attempts, job.correlation_id, job.trace_id
--taking: ),
gone as (
    delete from tenure.job using told
    where job.id = any (array[told.id]) and told.refusal is null and told.to_role = 'done'
      --taking: and false
    returning told.*, job.seq, job.counter + told.bump as counter, job.max_attempts, job.correlation_id, job.trace_id,
              job.created_at, job.first_started_at, job.last_heartbeat_at, job.lease_expires_at, job.cancel_requested_at,
              job.origin_letter, job.lease_token, job.finisher, job.raises, job.priority, job.queue, job.type, job.tenant_id,
              job.created_by, job.idempotency_key, job.payload, job.last_error, job.progress, job.checkpoint
),
-- The finisher's token stays, so that a repeat by the same holder is told apart from a stranger's late call.
finished as (
    insert into tenure.job_done (
        id, due_at, created_at, updated_at, first_started_at, started_at, finished_at, last_heartbeat_at,
        cancel_requested_at, origin_letter, lease_token, seq, claims, raises, counter, max_attempts, priority, contract,
        version, state, role, queue, type, tenant_id, created_by, trace_id, correlation_id, idempotency_key, payload,
        last_error, result, progress, checkpoint)
    select id, due_at, created_at, ts + (cardinality(hops) - 1) * interval '1 microsecond', first_started_at, started_at,
           ts + (cardinality(hops) - 1) * interval '1 microsecond', last_heartbeat_at, cancel_requested_at, origin_letter,
           case when :fenced::boolean then lease_token else finisher end, seq + cardinality(hops), claims, raises, counter,
           max_attempts, priority, :contract::text, :version::text, hops[cardinality(hops)], 'done', queue, type,
           tenant_id, created_by, trace_id, correlation_id, idempotency_key, payload,
           coalesce(tenure.failure(error, ts, counter, max_attempts, to_role, t, wait_ms), last_error), result, progress,
           checkpoint
    from gone
),
recorded as (
    insert into tenure.dead_letter (
        job_id, contract, tenant_id, type, queue, priority, max_attempts, reason_code, stage, last_error, counter, claims,
        last_owner, last_lease_expires_at, correlation_id, trace_id, payload, failed_at)
    select id, :contract::text, tenant_id, type, queue, priority, max_attempts,
           -- An operator's free words are in the log; a reason code is one of the contract's.
           case when :verb::text = 'transition' then letter else coalesce(reason, letter) end,
           case when :stages::text[] is null or error ->> 'stage' = any (:stages::text[])
                then coalesce(error ->> 'stage', 'exec') else 'exec' end,
           coalesce(tenure.failure(error, ts, counter, max_attempts, to_role, t, wait_ms), last_error,
                    jsonb_build_object('message', letter)),
           counter, claims, lease_owner, lease_expires_at, coalesce(correlation_id, md5((select by from made) || ':' || 'correlation:' || id)),
           coalesce(trace_id, md5((select by from made) || ':' || 'trace:' || id)), payload,
           coalesce((select min(event.ts) from tenure.event where job_id = id and event.facts ? 'error'), ts)
    from gone
    where letter is not null
),
logged as (
    insert into tenure.event (job_id, ts, seq, claims, counter, max_attempts, contract, trigger, from_state, to_state,
                              actor, reason, facts, type, correlation_id, trace_id, request_key, request_hash, answer)
    select id, ts + (k - 1) * interval '1 microsecond', seq + k, claims, counter, max_attempts, :contract::text, aim,
           case when k = 1 then state else hops[k - 1] end, hops[k], actor, why,
           case when k = 1 and (error is not null or wait_ms is not null or undoable) then jsonb_strip_nulls(jsonb_build_object(
               'error', error, 'delay_ms', wait_ms, 'due_at', tenure.iso(t + wait_ms * interval '1 millisecond'),
               'terminal', to_role = 'done',
               'effects_left', case when undoable and to_role = 'done' and not :fenced::boolean then true end))
           end,
           event_type,
           case when event_type is not null then coalesce(correlation_id, md5((select by from made) || ':' || 'correlation:' || id)) end,
           case when event_type is not null then coalesce(trace_id, md5((select by from made) || ':' || 'trace:' || id)) end,
           case when k = 1 then key end, case when k = 1 then hash end,
           case when k = 1 and key is not null then jsonb_build_object(
               'state', hops[cardinality(hops)], 'role', to_role, 'delay_ms', wait_ms,
               'due_at', tenure.iso(t + wait_ms * interval '1 millisecond'))
           end
    from (
        select id, t, ts, seq, claims, counter, max_attempts, aim, state, hops, actor, why, error, wait_ms, to_role,
               event_type, correlation_id, trace_id, key, hash, undoable, generate_series(1, cardinality(hops)) as k
        from moved
        union all
        select id, t, ts, seq, claims, counter, max_attempts, aim, state, hops, actor, why, error, wait_ms, to_role,
               event_type, correlation_id, trace_id, key, hash, undoable, generate_series(1, cardinality(hops)) as k
        from gone
        --taking: union all
        --taking: select id, t, ts, seq, claims + 1, counter, max_attempts, aim, state, hops, actor, why, error, wait_ms,
        --taking:        to_role, event_type, correlation_id, trace_id, key, hash, undoable, 1 as k
        --taking: from taken
    ) as hopped
)
select n, refusal, id, aim, state, hops[cardinality(hops)] as to_state, to_role, claims, counter, ts,
       t + wait_ms * interval '1 millisecond' as due_at, wait_ms, null::text as holder, null::timestamptz as since
from moved
union all
select n, refusal, id, aim, state, hops[cardinality(hops)], to_role, claims, counter, ts, null, null, null, null
from gone
--taking: union all
--taking: select n, refusal, id, aim, state, hops[1], to_role, claims + 1, counter, ts, null, null, null, null
--taking: from taken
union all
-- Who has it now? Nobody whose own proof still fits: that lease was forfeited, not taken.
select n, refusal, id, aim, state, null, null, claims, null, t, due_at, null, case when not proven then lease_owner end,
       started_at
from told
where refusal is not null
