-- Claim these jobs by their ids, each for its claimer: a ready job that is due, or one whose lease has run out.
-- Rendered from templates/claim_by_id.template by `python -m tests.postgres.render`: change the template.
-- A job that cannot be claimed is not changed; its row in the answer says why.
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
-- Options of job types that differ from the contract's: [lease, heartbeat, backoff base, cap, renews, end of a spent
-- budget], times in milliseconds. The claimer's own; where it declares none at all, those that are stored. Read once.
options as materialized (
    select coalesce(:options::jsonb, (
        select jsonb_object_agg(type, jsonb_build_array(round(lease_ttl_sec * 1000), round(heartbeat_sec * 1000),
                                                        backoff_base_ms, backoff_cap_ms, renews, on_exhausted))
        from tenure.job_type
        where contract = :contract::text
    )) as by_type
),
locked as materialized (
    select call.n, call.claim_key, call.owner, row.*
    from unnest(:ids::bigint[], :claim_keys::uuid[], :owners::text[]) with ordinality as call (id, claim_key, owner, n)
    cross join lateral (
        select id, state, role, type, claims, due_at, updated_at, started_at, lease_owner, lease_expires_at,
               -- Versions only ever add: every version of a contract claims in the same way. A caller takes only those
               -- that it can settle.
               contract = :contract::text as is_ours, version = any (:versions::text[]) as is_readable,
               tenure.has_budget(claims, max_attempts, raises, :extra::integer) as in_budget,
               cancel_requested_at is not null as cancelling, expires_at, queue
        from tenure.job
        where job.id = call.id
        for update skip locked
    ) as row
),
decided as materialized (
    select n, id, chosen.state, claims, due_at, lease_owner, started_at, claim_key, owner, t, chosen.trigger, path.hops,
           path.role as to_role, path.bump, path.type as event_type,
           (select by_type from options) -> chosen.type as numbers,
           greatest(t, updated_at + interval '1 microsecond') as ts,
           case
               when not is_ours then 'contract'
               when not is_readable then 'version'
               when path.hops is null then 'state'
               when chosen.trigger = 'claim' and tenure.is_expired(expires_at, claims, t) then 'expired'
               when chosen.trigger = 'claim' and (coalesce(due_at, '-infinity') > t or lease_expires_at >= t) then 'not_due'
               when chosen.trigger = 'reclaim'
                   and not (tenure.lease_expired(lease_expires_at, t) and in_budget and not cancelling) then 'state'
               -- Only where a worker claims for a message: an operator's claim of one job is deliberate.
               when :heeds_pause::boolean
                   and queue = any (array(select name from tenure.queue where paused_at is not null)) then 'paused'
           end as refusal
    from (
        select locked.*, case when role = 'ready' then 'claim' else 'reclaim' end as trigger, clock_timestamp() as t
        from locked
        -- A claim starts its leases when it has all its rows: no lease ends while it waits for a neighbour.
        where (select count(*) from locked) > 0
        offset 0 -- the clock is read once
    ) as chosen
    left join path on path.trigger = chosen.trigger and path.source = chosen.state
),
-- A claim key is used up with the first job that it wins. Keys of several callers are inserted in one order.
new_key as (
    insert into tenure.claim (key)
    select distinct claim_key from decided where refusal is null order by claim_key
    on conflict do nothing
    returning key
),
claimed as (
    update tenure.job
    set state = decided.hops[1], role = decided.to_role, seq = job.seq + 1, updated_at = decided.ts, claims = job.claims + 1,
        counter = job.counter + decided.bump, started_at = decided.ts, expires_at = null,
        first_started_at = coalesce(job.first_started_at, decided.ts), last_heartbeat_at = null,
        lease_token = decided.claim_key, lease_owner = decided.owner, quarantined_at = null, quarantine_reason = null,
        lease_ms = coalesce(:lease_ms::integer, (decided.numbers ->> 0)::integer, :default_lease_ms::integer),
        heartbeat_ms = coalesce((decided.numbers ->> 1)::integer, :heartbeat_ms::integer),
        backoff_base_ms = coalesce((decided.numbers ->> 2)::integer, :base_ms::integer),
        backoff_cap_ms = coalesce((decided.numbers ->> 3)::integer, :cap_ms::integer),
        renews = coalesce((decided.numbers ->> 4)::boolean, true),
        on_exhausted = decided.numbers ->> 5,
        lease_expires_at = decided.t + coalesce(:lease_ms::integer, (decided.numbers ->> 0)::integer,
                                                :default_lease_ms::integer) * interval '1 millisecond'
    from decided
    where job.id = any (array[decided.id]) and decided.refusal is null and decided.claim_key in (select key from new_key)
    returning decided.n, decided.refusal, decided.trigger, decided.state as from_state, decided.ts, decided.event_type,
              job.id, job.state, job.role, job.seq, job.claims, job.counter, job.max_attempts, job.lease_owner,
              job.correlation_id, job.trace_id, job.hidden, job.type, job.tenant_id, job.queue, job.due_at, job.created_at
),
logged as (
    insert into tenure.event (job_id, ts, seq, claims, counter, max_attempts, contract, trigger, from_state, to_state,
                              actor, reason, type, hidden, correlation_id, trace_id)
    select id, ts, seq, claims, counter, max_attempts, :contract::text, trigger, from_state, state, lease_owner,
           case when event_type is not null then trigger end, event_type,
           case when upper(hidden) = seq then upper(hidden) - lower(hidden) end,
           -- The ids are made where they are missing, for contracts that index their log by them.
           case when event_type is not null
                then coalesce(correlation_id, md5((select prefix from installation) || ':' || 'correlation:' || id))
                when :logs_correlation::boolean then correlation_id end,
           case when event_type is not null
                then coalesce(trace_id, md5((select prefix from installation) || ':' || 'trace:' || id))
                when :logs_trace::boolean then trace_id end
    from claimed
),
tallied as (
    insert into tenure.tally (at, number, seconds, bucket, contract, type, tenant_id, queue, trigger, path)
    select max(ts), count(*), sum(seconds), bucket, :contract::text, type, tenant_id, queue, trigger, from_state || '>' || state
    from (
        select ts, type, tenant_id, queue, trigger, from_state, state, seconds, tenure.duration_bucket(seconds) as bucket
        from (
            select ts, type, tenant_id, queue, trigger, from_state, state,
                   case when trigger = 'claim' then date_part('epoch', ts - greatest(due_at, created_at)) end as seconds
            from claimed
        ) as waited
    ) as one
    group by type, tenant_id, queue, trigger, from_state, state, bucket
)
select n, refusal, id, trigger, from_state, state as to_state, role as to_role, claims, counter, ts,
       null::timestamptz as due_at, null::bigint as wait_ms, null::text as holder, null::timestamptz as since,
       null::bigint as flow_id
from claimed
union all
select n, refusal, id, trigger, state, null, null, claims, null, t, due_at, null, lease_owner, started_at, null
from decided
where refusal is not null
