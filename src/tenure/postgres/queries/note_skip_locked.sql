-- Note something on these jobs without moving them.
-- Rendered from templates/note.template by `python -m tests.postgres.render`: change the template.
-- That is a heartbeat (and its renewal), progress, a checkpoint, a request to cancel, or a lease that is given up. A job
-- that refuses is not changed; its row in the answer says why.
--
-- The shape is that of finish.sql: lock, then the clock, then every guard. A note is a log row (hop = false) only where the
-- contract declares that fact.
-- Locked rows are skipped: another call is moving the job, and a heartbeat need not wait for it.
with installation as materialized (
    -- Ids that the caller did not give are made of this (tenure.made_id, written out: a call costs more than a move).
    select id::text as prefix from tenure.installation limit 1 -- it has one row, which the planner does not know
),
locked as materialized (
    select call.n, call.note, call.key, call.hash, row.*,
           tenure.is_holder(row.claims, coalesce(row.lease_token, row.finisher), call.claims, call.token) as is_holder
    from (
        select * from unnest(
            :ids::bigint[], :claims::integer[], :tokens::uuid[], :notes::jsonb[], :keys::text[], :hashes::text[]
        ) with ordinality as each (id, claims, token, note, key, hash, n)
        limit (select :size::bigint) -- all: without it a plan for any number of jobs looks so dear that none is ever kept
    ) as call
    cross join lateral (
        select id, state, role, type, claims, lease_token, finisher, lease_owner, lease_expires_at, last_heartbeat_at, started_at,
               updated_at, heartbeat_ms, renews as renewing, coalesce(lease_ms, :lease_ms::integer) as lease_ms,
               pending is not null as compensating, undoable is not null or pending is not null as undoable,
               cancel_requested_at is not null as cancelling,
               contract = :contract::text and version = :version::text as is_ours
        from tenure.job
        where job.id = call.id
        for update skip locked
    ) as row
),
decided as materialized (
    select judged.*,
           array_remove(array[:fact::text, case when renews then :renewal::text end], null) as facts
    from (
        select n, id, note, key, hash, state, lease_owner, started_at, is_holder, cancelling, lease_ms, t,
               greatest(t, updated_at + interval '1 microsecond') as ts, coalesce(:actor::text, lease_owner) as actor,
               case
                   when :verb::text = 'heartbeat'
                       and lease_expires_at - t <= lease_ms * :renew_at::double precision * interval '1 millisecond'
                       then coalesce(renewing, true)
                   else false
               end as renews,
               case
                   when not is_ours then 'contract'
                   when :fenced::boolean and (not is_holder or :forfeits::boolean and (
                       tenure.lease_expired(lease_expires_at, t)
                       or tenure.heartbeats_missed(
                           last_heartbeat_at, coalesce(heartbeat_ms, :heartbeat_ms::integer), :missed::integer, t)
                   )) then 'stale'
                   when role not in ('leased', 'active')
                       -- Effects must be undone by a holder first: the request waits for the next one.
                       and not (:verb::text = 'request_cancel' and undoable and role in ('ready', 'waiting')) then 'moved'
                   when :verb::text = 'compensated' and not compensating then 'moved'
               end as refusal
        from (select locked.*, clock_timestamp() as t from locked) as clocked
    ) as judged
),
noted as (
    update tenure.job
    set last_heartbeat_at = case when :verb::text = 'heartbeat' then decided.t else job.last_heartbeat_at end,
        lease_expires_at = case when decided.renews then greatest(
                                    job.lease_expires_at, decided.t + decided.lease_ms * interval '1 millisecond')
                                when :verb::text = 'let_go' then decided.t - interval '1 microsecond'
                                else job.lease_expires_at end,
        progress = case when :verb::text = 'progress' then decided.note else job.progress end,
        checkpoint = case when :verb::text = 'checkpoint' then decided.note else job.checkpoint end,
        -- A heartbeat's note says that the handler blocks the event loop of its worker.
        blocked_at = case when :verb::text = 'heartbeat' and decided.note is not null then coalesce(job.blocked_at, decided.t)
                          else job.blocked_at end,
        cancel_requested_at = case when :verb::text = 'request_cancel' then coalesce(job.cancel_requested_at, decided.t)
                                   else job.cancel_requested_at end,
        seq = job.seq + cardinality(decided.facts),
        updated_at = case when decided.facts = '{}' then job.updated_at
                          else decided.ts + (cardinality(decided.facts) - 1) * interval '1 microsecond' end
    from decided
    where job.id = any (array[decided.id]) and decided.refusal is null
      -- A second request changes nothing.
      and not (:verb::text = 'request_cancel' and decided.cancelling)
    returning decided.*, job.seq as last_seq, job.claims, job.counter, job.max_attempts, job.correlation_id, job.trace_id,
              job.lease_expires_at as expires, job.hidden, job.type as task, job.tenant_id, job.queue
),
logged as (
    insert into tenure.event (job_id, ts, seq, hop, claims, counter, max_attempts, contract, trigger, from_state, to_state,
                              actor, reason, facts, type, hidden, correlation_id, trace_id, request_key, request_hash, answer)
    select id, ts + (k - 1) * interval '1 microsecond', last_seq - cardinality(facts) + k, false, claims, counter,
           max_attempts, :contract::text, fact, state, state, actor,
           coalesce(:reason::text, case when type is not null then fact end),
           case when :verb::text = 'heartbeat' then jsonb_build_object('lease_expires_at', tenure.iso(expires)) end, type,
           case when upper(hidden) = last_seq - cardinality(facts) + k then upper(hidden) - lower(hidden) end,
           -- The ids are made where they are missing, for contracts that index their log by them.
           case when type is not null
                then coalesce(correlation_id, md5((select prefix from installation) || ':' || 'correlation:' || id))
                when :logs_correlation::boolean then correlation_id end,
           case when type is not null
                then coalesce(trace_id, md5((select prefix from installation) || ':' || 'trace:' || id))
                when :logs_trace::boolean then trace_id end,
           case when k = 1 then key end, case when k = 1 then hash end,
           case when k = 1 and key is not null then jsonb_build_object(
               'lease_expires_at', tenure.iso(expires), 'cancel_requested', cancelling, 'renewed', renews)
           end
    from (
        -- The planner takes an array for ten rows, and generate_subscripts for a thousand.
        select noted.*, each.fact, each.k::integer as k,
               case each.fact when :renewal::text then :renewal_type::text else :fact_type::text end as type
        from noted cross join lateral unnest(facts) with ordinality as each (fact, k)
    ) as row
),
-- Renewals of leases, also under contracts that do not log them.
tallied as (
    insert into tenure.tally (at, number, contract, type, tenant_id, queue, trigger, path)
    select max(ts), count(*), :contract::text, task, tenant_id, queue, 'renew', state || '>' || state
    from noted
    where renews
    group by task, tenant_id, queue, state
)
select n, refusal, id, state, expires, cancelling or :verb::text = 'request_cancel', renews, null::text as holder,
       null::timestamptz as since
from noted
union all
select n, refusal, id, state, null, cancelling, false, case when not is_holder then lease_owner end, started_at
from decided
where refusal is not null or :verb::text = 'request_cancel' and cancelling
