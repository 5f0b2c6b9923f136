-- May these jobs make this move? If so: make it, log it and say what became of them. If not: say why, change nothing.
--
-- The one gate for every move that may wait for a row. Its shape is law 1: lock by id, in the order of the sorted
-- array; then read the clock, once per row, above the lock; then every guard, the new row, the log and the reason of
-- a refusal use that clock and the locked version. A guard in the UPDATE's own WHERE would be judged before the wait.
-- Contract values come as parameters: the paths of this trigger, the budget, the backoff.
with fresh as (
    insert into tenure.claim (key)
    select :claim_key::uuid where :claim_key::uuid is not null
    on conflict do nothing
    returning key
),
asked as materialized (
    select *
    from unnest(
        :ids::bigint[], :claims::integer[], :tokens::uuid[], :verdicts::text[], :reasons::text[], :errors::jsonb[],
        :results::jsonb[], :delays::bigint[]
    ) with ordinality as a (id, claims, token, verdict, reason, error, result, delay_ms, n)
    where :claim_key::uuid is null or exists (select from fresh)
),
path as materialized (
    select trigger, source, string_to_array(hops, '>') as hops, role, due, letter, bump, type
    from unnest(
        :path_trigger::text[], :path_source::text[], :path_hops::text[], :path_role::text[], :path_due::text[],
        :path_letter::text[], :path_bump::integer[], :path_type::text[]
    ) as p (trigger, source, hops, role, due, letter, bump, type)
),
locked as materialized (
    select asked.n, asked.claims as asked_claims, asked.token as asked_token, asked.verdict, asked.reason, asked.error,
           asked.result, asked.delay_ms, row.*
    from asked cross join lateral (
        select id, contract, version, state, role, claims, raises, counter, max_attempts, seq, due_at, updated_at,
               started_at as since, lease_token, lease_owner, lease_expires_at, last_heartbeat_at, cancel_requested_at
        from tenure.job
        where job.id = asked.id
        for update
    ) as row
),
judged as materialized (
    select locked.*, clock_timestamp() as t,
           claims < greatest(1, max_attempts + :extra::integer) + raises as in_budget
    from locked
),
aimed as materialized (
    select judged.*,
           coalesce(lease_expires_at < t, false) as expired,
           coalesce(last_heartbeat_at + :orphaned_ms::bigint * interval '1 millisecond' < t, false) as orphaned,
           case
               -- A soft cancel turns every way back, and every failure, into the cancel path.
               when cancel_requested_at is not null and :verb::text in ('fail', 'expire', 'snooze', 'hand_back')
                   then 'cancel'
               when :verb::text = 'fail'
                   then case when verdict <> 'retry' then verdict when in_budget then 'retry' else 'exhaust' end
               when :verb::text = 'expire'
                   then case when in_budget then 'expire' else 'expire_at_cap' end
               when :verb::text = 'claim'
                   then case when role = 'ready' then 'claim' else 'reclaim' end
               else :verb::text
           end as aim
    from judged
),
decided as materialized (
    select aimed.*, path.hops, path.hops[cardinality(path.hops)] as to_state, path.role as to_role, path.letter,
           path.bump, path.type as event_type,
           aim in ('claim', 'reclaim') as taken,
           greatest(t, updated_at + interval '1 microsecond') as ts,
           case path.due
               when 'backoff' then tenure.backoff_ms(
                   id, claims, raises, :base_ms::bigint, :factor::double precision, :cap_ms::bigint, :jitter_form::text,
                   :jitter_low::double precision, :jitter_high::double precision, :cap_after_jitter::boolean)
               when 'given' then coalesce(delay_ms, 0)
               when 'now' then 0
           end as wait_ms,
           coalesce(:actor::text, lease_owner, 'unknown') as actor,
           case
               when contract <> :contract::text or version <> :version::text then 'contract'
               when :fenced::boolean
                    and ((claims, lease_token) is distinct from (asked_claims, asked_token)
                         or :forfeits::boolean and (expired or orphaned)) then 'stale'
               when path.hops is null then 'state'
               when aim = 'claim' and (coalesce(due_at, '-infinity') > t or lease_expires_at >= t) then 'not_due'
               when aim = 'reclaim' and not (expired and in_budget) then 'state'
               when :verb::text = 'expire' and not (expired or orphaned) then 'not_due'
               when :verb::text = 'promote' and not coalesce(due_at <= t, false) then 'not_due'
           end as refusal
    from aimed left join path on path.trigger = aim and path.source = aimed.state
),
told as materialized (
    select decided.*,
           ts + wait_ms * interval '1 millisecond' as next_due,
           coalesce(reason, case when :verb::text = 'expire' then
               case when expired then 'lease_expired' else 'orphaned' end
           end) as why,
           case when error is not null then
               error || jsonb_build_object(
                   'ts', tenure.iso(ts), 'attempt', counter + bump, 'max_attempts', max_attempts,
                   'terminal', to_role in ('done', 'settling'))
               || case when wait_ms is not null and to_role in ('ready', 'waiting') then jsonb_build_object(
                   'delay_ms', wait_ms, 'due_at', tenure.iso(ts + wait_ms * interval '1 millisecond'))
                  else '{}' end
           end as failure
    from decided
),
moved as (
    update tenure.job
    set state = told.to_state, role = told.to_role, seq = job.seq + cardinality(told.hops),
        updated_at = told.ts + (cardinality(told.hops) - 1) * interval '1 microsecond',
        claims = job.claims + told.taken::integer, counter = job.counter + told.bump,
        raises = job.raises + (told.aim = 'snooze')::integer,
        due_at = coalesce(told.next_due, job.due_at), last_error = coalesce(told.failure, job.last_error),
        started_at = case when told.taken then told.ts else job.started_at end,
        first_started_at = case when told.taken then coalesce(job.first_started_at, told.ts) else job.first_started_at end,
        last_heartbeat_at = case when told.aim = 'start' then told.ts when not told.taken then job.last_heartbeat_at end,
        lease_token = case when told.taken then :claim_key::uuid
                           when told.to_role in ('leased', 'active') then job.lease_token end,
        lease_owner = case when told.taken then :owner::text
                           when told.to_role in ('leased', 'active') then job.lease_owner end,
        lease_expires_at = case when told.taken then told.ts + :lease_ms::bigint * interval '1 millisecond'
                                when told.to_role in ('leased', 'active') then job.lease_expires_at end
    from told
    where job.id = told.id and told.refusal is null and told.to_role <> 'done'
    returning told.*, job.correlation_id, job.trace_id
),
gone as (
    delete from tenure.job using told
    where job.id = told.id and told.refusal is null and told.to_role = 'done'
    returning told.*, job.created_at, job.first_started_at, job.started_at, job.origin_letter, job.priority, job.queue,
              job.type, job.tenant_id, job.created_by, job.correlation_id, job.trace_id, job.idempotency_key, job.payload,
              job.last_error, job.progress, job.checkpoint
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
           case when :fenced::boolean then lease_token end, seq + cardinality(hops), claims, raises, counter + bump,
           max_attempts, priority, contract, version, to_state, 'done', queue, type, tenant_id, created_by, trace_id,
           correlation_id, idempotency_key, payload, coalesce(failure, last_error), result, progress, checkpoint
    from gone
),
recorded as (
    insert into tenure.dead_letter (
        job_id, contract, tenant_id, type, reason_code, stage, last_error, counter, claims, last_owner,
        last_lease_expires_at, correlation_id, trace_id, payload, failed_at)
    select id, contract, tenant_id, type, coalesce(reason, letter),
           coalesce(failure ->> 'stage', 'exec'), coalesce(failure, last_error, jsonb_build_object('message', letter)),
           counter + bump, claims, lease_owner, lease_expires_at,
           coalesce(correlation_id, tenure.made_id('correlation', id)), coalesce(trace_id, tenure.made_id('trace', id)),
           payload, ts
    from gone
    where letter is not null
),
logged as (
    insert into tenure.event (job_id, ts, seq, claims, counter, max_attempts, contract, trigger, from_state, to_state,
                              actor, reason, facts, type, correlation_id, trace_id)
    select id, ts + (k - 1) * interval '1 microsecond', seq + k, claims + taken::integer, counter + bump, max_attempts,
           contract, aim, case when k = 1 then state else hops[k - 1] end, hops[k], actor, why,
           case when k = 1 and (failure is not null or next_due is not null) then jsonb_strip_nulls(jsonb_build_object(
               'error', error, 'delay_ms', wait_ms, 'due_at', tenure.iso(next_due), 'terminal', to_role = 'done'))
           end,
           event_type,
           case when event_type is not null then coalesce(correlation_id, tenure.made_id('correlation', id)) end,
           case when event_type is not null then coalesce(trace_id, tenure.made_id('trace', id)) end
    from (
        select id, ts, seq, claims, taken, counter, bump, max_attempts, contract, aim, state, hops, actor, why, failure,
               error, wait_ms, next_due, to_role, event_type, correlation_id, trace_id from moved
        union all
        select id, ts, seq, claims, taken, counter, bump, max_attempts, contract, aim, state, hops, actor, why, failure,
               error, wait_ms, next_due, to_role, event_type, correlation_id, trace_id from gone
    ) as hopped
    cross join lateral generate_series(1, cardinality(hops)) as k
)
select n, id, refusal, aim, state, contract, version, claims, counter, lease_owner, since, due_at, null::text as to_state,
       null::text as to_role, null::bigint as wait_ms, t as ts
from told
where refusal is not null
union all
select n, id, null, aim, state, contract, version, claims + taken::integer, counter + bump, lease_owner, since,
       coalesce(next_due, due_at), to_state, to_role, wait_ms, ts
from moved
union all
select n, id, null, aim, state, contract, version, claims, counter + bump, lease_owner, since, null, to_state, to_role,
       null, ts
from gone
union all
-- Row 0 tells a first claim from a repeat.
select 0, null, case when exists (select from fresh) then 'fresh' else 'repeat' end, null, null, null, null, null, null,
       null, null, null, null, null, null, null
where :claim_key::uuid is not null
