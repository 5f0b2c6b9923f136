-- Which due jobs does this caller get now?
--
-- Nobody waits for a row: locked ones are skipped, because another claimer has them. The lanes (queue by queue, priority
-- 0 to 9) are walked lazily, so a million delayed urgent jobs cost one index probe. The claim key is spent with the
-- first job found: of several calls with one key, one inserts it and moves jobs, the others wait for it and move none
-- (held.sql then says what the first one won). An idle queue, which is asked often, spends no key.
with made as materialized (
    -- What the ids are made of that nobody gave (tenure.made_id, written out: a call costs more than a move).
    select id::text as by from tenure.installation
),
clock as materialized (
    select clock_timestamp() as t
),
-- What is asked for; a paused queue is not, by anybody. It stands here and not in the conditions below: if the planner
-- knew the values there, every claim would look worth a plan of its own, which takes longer than the claim.
asked as materialized (
    select :contract::text as contract, :path_source::text[] as sources,
           --typed: :types::text[] as types,
           --tenanted: :tenant::text as tenant,
           array(
               select name from unnest(:queues::text[]) as name
               where name <> all (array(select queue.name from tenure.queue where paused_at is not null))
           ) as queues
),
-- Priorities within queues, in this order, and where each of them begins: at the mark that the caller set there
-- (marks.py), or at its beginning. Written out, because the planner takes any generate_series for a thousand rows.
lane as materialized (
    select each.*, coalesce((:marks::jsonb -> each.queue ->> each.priority)::timestamptz, '-infinity') as since
    from asked, unnest(asked.queues) as name, lateral (
        values (name, 0::smallint), (name, 1::smallint), (name, 2::smallint), (name, 3::smallint), (name, 4::smallint),
               (name, 5::smallint), (name, 6::smallint), (name, 7::smallint), (name, 8::smallint), (name, 9::smallint)
    ) as each (queue, priority)
),
path as materialized (
    select * from unnest(
        :path_trigger::text[], :path_source::text[], :path_state::text[], :path_role::text[], :path_bump::integer[],
        :path_type::text[]
    ) as p (trigger, source, state, role, bump, type)
    limit (select cardinality(:path_source::text[])) -- all; unlimited, the planner takes them for many
),
-- What job types want otherwise than the contract: [lease, heartbeat] in milliseconds. Read once.
own as materialized (
    select jsonb_object_agg(type, jsonb_build_array(round(lease_ttl_sec * 1000), round(heartbeat_sec * 1000))) as by_type
    from tenure.job_type
    where contract = :contract::text
),
near as materialized (
    select row.* from clock, asked, lateral (
        -- Where a contract reclaims in place, dead workers' jobs go first: a full queue must not starve them.
        --reclaiming: select expired.* from (
        --reclaiming:     select ctid as tid, state, type as task, updated_at,
        --reclaiming:            pg_column_size(payload) + coalesce(pg_column_size(checkpoint), 0) as size,
        --reclaiming:            coalesce(pg_column_compression(payload), pg_column_compression(checkpoint)) as packed
        --reclaiming:     from tenure.job
        --reclaiming:     where contract = asked.contract and role in ('leased', 'active', 'settling')
        --reclaiming:       and state = any (asked.sources) and queue = any (asked.queues) and lease_expires_at < clock.t
        --reclaiming:       and claims < greatest(1, max_attempts + :extra::integer) + raises
        --reclaiming:       and cancel_requested_at is null
        --reclaiming:       --typed: and type = any (asked.types)
        --reclaiming:       --tenanted: and tenant_id = asked.tenant
        --reclaiming:       --apart: and tenant_id <> 'default'
        --reclaiming:     limit (select :limit::bigint)
        --reclaiming:     for update skip locked
        --reclaiming: ) as expired
        --reclaiming: union all
        select due.* from lane, lateral (
            select ctid as tid, state, type as task, updated_at,
                   pg_column_size(payload) + coalesce(pg_column_size(checkpoint), 0) as size,
                   coalesce(pg_column_compression(payload), pg_column_compression(checkpoint)) as packed
            from tenure.job
            where contract = asked.contract and queue = lane.queue and priority = lane.priority and role = 'ready'
              and state = any (asked.sources) and coalesce(due_at, '-infinity') <= clock.t
              and coalesce(due_at, '-infinity') >= lane.since
              and (lease_expires_at is null or lease_expires_at < clock.t)
              --typed: and type = any (asked.types)
              --tenanted: and tenant_id = asked.tenant
              --apart: and tenant_id <> 'default' -- of whom there is an index
            order by coalesce(due_at, '-infinity'), id
            limit (select :limit::bigint)
            for update skip locked
        ) as due
    ) as row
    limit (select :limit::bigint)
),
-- Not more than one answer can carry, but always one job. What is stored packed is taken for 16 times as much; to
-- unpack it would cost more than the claim.
found as materialized (
    select * from (
        select near.*, sum(case when packed is null then size else 16 * size end)
                           over (rows between unbounded preceding and 1 preceding) as before
        from near
    ) as weighed
    where before is null or before < (select :heaviest::bigint)
),
-- Several callers may ask together, each with a key, a name and a number of its own: what was found is dealt out to them
-- in their order. A key is spent by who gets a job with it.
--shared: sharer as materialized (
--shared:     select key, owner, (sum(wants) over (order by n) - wants)::bigint as below,
--shared:            (sum(wants) over (order by n))::bigint as upto
--shared:     from unnest(:claim_keys::uuid[], :owners::text[], :wants::bigint[]) with ordinality as s (key, owner, wants, n)
--shared:     -- What a spent key would be dealt, nobody would get.
--shared:     where not exists (select from tenure.claim where claim.key = s.key)
--shared: ),
fresh as (
    insert into tenure.claim (key)
    --alone: select :claim_key::uuid where exists (select from found)
    --shared: select key from sharer where below < (select count(*) from found) order by key
    on conflict do nothing
    returning key
),
-- The lease runs from the clock; the log's time also rises when the clock steps back.
picked as materialized (
    select tid, t, greatest(t, clocked.updated_at + interval '1 microsecond') as ts, way.*,
           --shared: key, owner,
           coalesce(:lease_ms::integer, ((select by_type from own) -> task ->> 0)::integer) as lease_ms,
           ((select by_type from own) -> task ->> 1)::integer as heartbeat_ms
    from (
        --alone: select found.*, clock_timestamp() as t from found where exists (select from fresh)
        --shared: select numbered.*, sharer.key, sharer.owner, clock_timestamp() as t
        --shared: from (select found.*, row_number() over () as n from found) as numbered
        --shared: join sharer on numbered.n > sharer.below and numbered.n <= sharer.upto
        --shared: where sharer.key in (select key from fresh)
    ) as clocked
    cross join lateral (select * from path where path.source = clocked.state limit 1) as way
),
moved as (
    update tenure.job
    set state = picked.state, role = picked.role, claims = job.claims + 1, counter = job.counter + picked.bump,
        seq = job.seq + 1, updated_at = picked.ts, started_at = picked.ts,
        first_started_at = coalesce(job.first_started_at, picked.ts),
        --alone: lease_token = :claim_key::uuid, lease_owner = :owner::text,
        --shared: lease_token = picked.key, lease_owner = picked.owner,
        lease_expires_at = picked.t + coalesce(picked.lease_ms, :default_lease_ms::integer) * interval '1 millisecond',
        lease_ms = picked.lease_ms, heartbeat_ms = picked.heartbeat_ms, last_heartbeat_at = null
    from picked
    where job.ctid = picked.tid
    -- Few columns, because a row is copied at each step; those of the log first, because who reads one passes the others.
    returning job.id, job.updated_at, job.seq, job.claims, job.counter, job.max_attempts, picked.trigger, picked.source,
              job.state, picked.type as event_type, job.correlation_id, job.trace_id, job.version, job.role, job.queue,
              job.type, job.tenant_id, job.priority, job.raises, job.payload, job.lease_expires_at, job.due_at,
              job.created_at, job.cancel_requested_at, job.idempotency_key, job.origin_letter, job.last_error,
              job.checkpoint, job.pending
              --shared: , job.lease_token, job.lease_owner
),
logged as (
    insert into tenure.event (job_id, ts, seq, claims, counter, max_attempts, contract, trigger, from_state, to_state,
                              actor, reason, type, correlation_id, trace_id)
    select id, updated_at, seq, claims, counter, max_attempts, :contract::text, trigger, source, state,
           --alone: :owner::text,
           --shared: lease_owner,
           case when event_type is not null then trigger end, event_type,
           case when event_type is not null then coalesce(correlation_id, md5((select by from made) || ':' || 'correlation:' || id)) end,
           case when event_type is not null then coalesce(trace_id, md5((select by from made) || ':' || 'trace:' || id)) end
    from moved
)
-- What every job of a claim has in common (the contract, the owner, the token) is known to whoever asks.
select id, version, state, role, queue, type, tenant_id, priority, claims, raises, counter, max_attempts, payload::text,
       lease_expires_at, due_at, created_at, updated_at, cancel_requested_at, trace_id, correlation_id, idempotency_key,
       origin_letter, last_error::text, checkpoint::text, pending::text
       --shared: , lease_token, lease_owner
from moved
