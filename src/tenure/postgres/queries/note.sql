-- May this be noted on these jobs, without moving them? A heartbeat (and its renewal), progress, a checkpoint, a request to
-- cancel, a lease let go. If not: say why, change nothing.
--
-- The shape is that of move.sql: lock, then the clock, then every guard. A note is a log row (hop = false) only where the
-- contract declares that fact. A heartbeat skips locked rows: somebody is moving the job right now, which is no loss.
with made as materialized (
    -- What the ids are made of that nobody gave (tenure.made_id, written out: a call costs more than a move).
    select id::text as by from tenure.installation
),
locked as materialized (
    select asked.n, asked.note, asked.key, asked.hash, row.*,
           (row.claims, coalesce(row.lease_token, row.finisher)) is not distinct from (asked.claims, asked.token) as proven
    from unnest(:ids::bigint[], :claims::integer[], :tokens::uuid[], :notes::jsonb[], :keys::text[], :hashes::text[])
        with ordinality as asked (id, claims, token, note, key, hash, n)
    cross join lateral (
        select id, state, role, type, claims, lease_token, finisher, lease_owner, lease_expires_at, last_heartbeat_at, started_at,
               updated_at, heartbeat_ms, coalesce(lease_ms, :lease_ms::integer) as lease_ms,
               pending is not null as compensating, undoable is not null or pending is not null as undoable, cancel_requested_at is not null as cancelling,
               contract = :contract::text and version = :version::text as ours
        from tenure.job
        where job.id = asked.id
        for update
    ) as row
),
told as materialized (
    select judged.*,
           array_remove(array[:fact::text, case when renews then :renewal::text end], null) as facts
    from (
        select n, id, note, key, hash, state, lease_owner, started_at, proven, cancelling, lease_ms, t,
               greatest(t, updated_at + interval '1 microsecond') as ts, coalesce(:actor::text, lease_owner) as actor,
               case
                   when :verb::text = 'heartbeat'
                       and lease_expires_at - t <= lease_ms * :renew_at::double precision * interval '1 millisecond'
                       then coalesce(((select jsonb_object_agg(type, renews) from tenure.job_type
                                       where contract = :contract::text) ->> clocked.type)::boolean, true)
                   else false
               end as renews,
               case
                   when not ours then 'contract'
                   --keyed: when key is not null and exists (
                   --keyed:     select from tenure.event where event.job_id = clocked.id and event.request_key = clocked.key
                   --keyed: ) then 'repeated'
                   when :fenced::boolean and (not proven or :forfeits::boolean and (
                       coalesce(lease_expires_at < t, false)
                       or coalesce(last_heartbeat_at + :missed::integer * coalesce(heartbeat_ms, :heartbeat_ms::integer)
                                   * interval '1 millisecond' < t, false)
                   )) then 'stale'
                   when role not in ('leased', 'active')
                       -- What must be undone first needs a holder: it is asked when it comes.
                       and not (:verb::text = 'request_cancel' and undoable and role in ('ready', 'waiting')) then 'moved'
                   when :verb::text = 'compensated' and not compensating then 'moved'
               end as refusal
        from (select locked.*, clock_timestamp() as t from locked) as clocked
    ) as judged
),
noted as (
    update tenure.job
    set last_heartbeat_at = case when :verb::text = 'heartbeat' then told.t else job.last_heartbeat_at end,
        lease_expires_at = case when told.renews then greatest(
                                    job.lease_expires_at, told.t + told.lease_ms * interval '1 millisecond')
                                when :verb::text = 'let_go' then told.t - interval '1 microsecond'
                                else job.lease_expires_at end,
        progress = case when :verb::text = 'progress' then told.note else job.progress end,
        checkpoint = case when :verb::text = 'checkpoint' then told.note else job.checkpoint end,
        cancel_requested_at = case when :verb::text = 'request_cancel' then coalesce(job.cancel_requested_at, told.t)
                                   else job.cancel_requested_at end,
        seq = job.seq + cardinality(told.facts),
        updated_at = case when told.facts = '{}' then job.updated_at
                          else told.ts + (cardinality(told.facts) - 1) * interval '1 microsecond' end
    from told
    where job.id = any (array[told.id]) and told.refusal is null
      -- A second request changes nothing.
      and not (:verb::text = 'request_cancel' and told.cancelling)
    returning told.*, job.seq as last_seq, job.claims, job.counter, job.max_attempts, job.correlation_id, job.trace_id,
              job.lease_expires_at as expires
),
logged as (
    insert into tenure.event (job_id, ts, seq, hop, claims, counter, max_attempts, contract, trigger, from_state, to_state,
                              actor, reason, facts, type, correlation_id, trace_id, request_key, request_hash, answer)
    select id, ts + (k - 1) * interval '1 microsecond', last_seq - cardinality(facts) + k, false, claims, counter,
           max_attempts, :contract::text, facts[k], state, state, actor,
           coalesce(:reason::text, case when type is not null then facts[k] end),
           case when :verb::text = 'heartbeat' then jsonb_build_object('lease_expires_at', tenure.iso(expires)) end, type,
           case when type is not null then coalesce(correlation_id, md5((select by from made) || ':' || 'correlation:' || id)) end,
           case when type is not null then coalesce(trace_id, md5((select by from made) || ':' || 'trace:' || id)) end,
           case when k = 1 then key end, case when k = 1 then hash end,
           case when k = 1 and key is not null then jsonb_build_object(
               'lease_expires_at', tenure.iso(expires), 'cancel_requested', cancelling, 'renewed', renews)
           end
    from (
        select noted.*, k, case facts[k] when :renewal::text then :renewal_type::text else :fact_type::text end as type
        from noted cross join lateral generate_subscripts(facts, 1) as k
    ) as fact
)
select n, refusal, id, state, expires, cancelling or :verb::text = 'request_cancel', renews, null::text as holder, null::timestamptz as since from noted
union all
select n, refusal, id, state, null, cancelling, false, case when not proven then lease_owner end, started_at
from told
where refusal is not null or :verb::text = 'request_cancel' and cancelling
