-- Claim due jobs from these queues, in the order of priority, due time and id.
-- Rendered from templates/claim.template by `python -m tests.postgres.render`: change the template.
-- Jobs whose lease has run out are claimed again in place, before the ready ones.
--
-- The claim waits for no row: locked rows are skipped, because another claim has them. tenure.lanes says from which lanes
-- (a queue's priority, type and version) how many jobs are taken. Calls with the same claim key run one after the other:
-- the first one that finds a job inserts the key, the others take nothing (and then read what the first one won).
-- A claim that finds no job inserts no key.
with installation as materialized (
    -- Ids that the caller did not give are made of this (tenure.made_id, written out: a call costs more than a claim).
    select id::text as prefix from tenure.installation
),
-- The key is locked before any row: a repeat that passed the rows which its twin has locked would answer "nothing".
clock as materialized (
    select clock_timestamp() as t
    from pg_advisory_xact_lock(hashtextextended((:claim_key::uuid)::text, 0))
),
-- What to look for; paused queues are left out. The values stand here and not in the conditions below: if the planner
-- knew them there, every claim would look worth a plan of its own, and planning takes longer than the claim.
wanted as materialized (
    select :contract::text as contract, :path_source::text[] as sources, :tenant::text as tenant,
           -- Both in byte order, as tenure.lanes needs them. No types: any type.
           :versions::text[] as versions, :types::text[] as types,
           array(
               select name from unnest(:queues::text[]) as name
               where name <> all (array(select queue.name from tenure.queue where paused_at is not null))
           ) as queues
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
path as materialized (
    select * from unnest(
        :path_trigger::text[], :path_source::text[], :path_state::text[], :path_role::text[], :path_bump::integer[],
        :path_type::text[]
    ) as p (trigger, source, state, role, bump, type)
    limit (select cardinality(:path_source::text[])) -- all; unlimited, the planner takes them for many
),
-- Jobs of dead workers go first: a full queue must not starve them.
expired as materialized (
    select row.* from clock, wanted, lateral (
        select ctid as tid, id / 1048576 as unit, state, type as task, updated_at,
               pg_column_size(payload) + coalesce(pg_column_size(checkpoint), 0) as size,
               coalesce(pg_column_compression(payload), pg_column_compression(checkpoint)) as packed
        from tenure.job
        where contract = wanted.contract and role in ('leased', 'active', 'settling')
          and state = any (wanted.sources) and queue = any (wanted.queues) and tenure.lease_expired(lease_expires_at, clock.t)
          and tenure.has_budget(claims, max_attempts, raises, :extra::integer)
          and cancel_requested_at is null and quarantined_at is null and version = any (wanted.versions)
          and (wanted.types is null or type = any (wanted.types))
          and (wanted.tenant is null or tenant_id = wanted.tenant)
        limit (select :limit::bigint)
        for update skip locked
    ) as row
),
lane as materialized (
    select lanes.*
    from clock, wanted, lateral
        tenure.lanes(
            wanted.contract, wanted.versions, wanted.queues, wanted.types, :seen::text[], wanted.tenant, :positions::jsonb,
            :limit::bigint - (select count(*) from expired), clock.t
        ) as lanes
),
first as materialized (
    select due.*, lane.part, lane.counted from clock, wanted, lane, lateral (
        select ctid as tid, id / 1048576 as unit, state, type as task, updated_at, coalesce(due_at, '-infinity') as due, id,
               pg_column_size(payload) + coalesce(pg_column_size(checkpoint), 0) as size,
               coalesce(pg_column_compression(payload), pg_column_compression(checkpoint)) as packed,
               tenure.is_expired(expires_at, claims, clock.t) as is_expired
        from tenure.job
        where contract = wanted.contract and queue = lane.queue and priority = lane.priority
          and type collate "C" = lane.type and version collate "C" = lane.version and role = 'ready'
          and quarantined_at is null and state = any (wanted.sources) and coalesce(due_at, '-infinity') <= clock.t
          and coalesce(due_at, '-infinity') >= lane.since
          and (lease_expires_at is null or tenure.lease_expired(lease_expires_at, clock.t))
          and (wanted.tenant is null or tenant_id = wanted.tenant)
        order by coalesce(due_at, '-infinity'), id
        limit lane.take
        for update skip locked
    ) as due
    limit (select :limit::bigint)
),
-- Other claims have locked jobs of the lanes that were read: look once more, in all lanes, for free jobs. Only claims that
-- met others pay for this.
elsewhere as materialized (
    select due.*, wide.part from clock, wanted, lateral
        tenure.lanes(
            wanted.contract, wanted.versions, wanted.queues, wanted.types, :seen::text[], wanted.tenant, :positions::jsonb, null,
            clock.t
        ) as wide, lateral (
        select ctid as tid, id / 1048576 as unit, state, type as task, updated_at, coalesce(due_at, '-infinity') as due, id,
               pg_column_size(payload) + coalesce(pg_column_size(checkpoint), 0) as size,
               coalesce(pg_column_compression(payload), pg_column_compression(checkpoint)) as packed,
               tenure.is_expired(expires_at, claims, clock.t) as is_expired
        from tenure.job
        where contract = wanted.contract and queue = wide.queue and priority = wide.priority
          and type collate "C" = wide.type and version collate "C" = wide.version and role = 'ready'
          and quarantined_at is null and state = any (wanted.sources) and coalesce(due_at, '-infinity') <= clock.t
          and coalesce(due_at, '-infinity') >= wide.since
          and (lease_expires_at is null or tenure.lease_expired(lease_expires_at, clock.t))
          and id <> all (array(select id from first))
          and (wanted.tenant is null or tenant_id = wanted.tenant)
        order by coalesce(due_at, '-infinity'), id
        limit (select :limit::bigint)
        for update skip locked
    ) as due
    where (select count(*) from first) < (select :limit::bigint)
      and ((select count(*) from lane) >= (select :limit::bigint) or exists (select from lane where counted))
    limit (select :limit::bigint - count(*) from first)
),
chosen as materialized (
    select tid, unit, state, task, updated_at, size, packed, false as is_expired from expired
    union all
    (select tid, unit, state, task, updated_at, size, packed, is_expired
    from (
        select part, due, id, tid, unit, state, task, updated_at, size, packed, is_expired from first
        union all
        select 1000000 + part, due, id, tid, unit, state, task, updated_at, size, packed, is_expired from elsewhere
    ) as row
    order by part, due, id -- the lanes of one priority were read one after the other
    limit (select :limit::bigint))
),
-- A job that expired before it began is picked but not claimed, so a backlog of such jobs is not walked over: a claim that
-- met such jobs and won none answers one row without an id, and its caller cancels them and claims again.
-- Not more than one answer can carry, but always one job. A compressed value counts 16 times its size; to decompress it
-- would cost more than the claim.
weighed as materialized (
    select chosen.*, row_number() over () as n,
           sum(case when packed is null then size else 16 * size end)
               over (rows between unbounded preceding and 1 preceding) as before
    from chosen
    where not is_expired
),
-- And the jobs of at most eight id ranges: the log of each range costs locks of its own.
found as materialized (
    select * from weighed
    where (before is null or before < (select :heaviest::bigint))
      and n < coalesce((select min(n) from weighed group by unit order by 1 offset 8 limit 1), 1000000)
),
new_key as (
    insert into tenure.claim (key)
    select :claim_key::uuid where exists (select from found)
    on conflict do nothing
    returning key
),
-- The lease runs from the clock; the log's time also rises when the clock steps back.
picked as materialized (
    select tid, t, greatest(t, clocked.updated_at + interval '1 microsecond') as ts, step.*,
           (select by_type from options) -> task as numbers
    from (
        select found.*, clock_timestamp() as t from found where exists (select from new_key)
    ) as clocked
    cross join lateral (select * from path where path.source = clocked.state limit 1) as step
),
moved as (
    update tenure.job
    set state = picked.state, role = picked.role, counter = job.counter + picked.bump,
        claims = job.claims + 1, seq = job.seq + 1, updated_at = picked.ts, started_at = picked.ts,
        first_started_at = coalesce(job.first_started_at, picked.ts),
        lease_token = :claim_key::uuid, lease_owner = :owner::text,
        lease_expires_at = picked.t + coalesce(:lease_ms::integer, (picked.numbers ->> 0)::integer, :default_lease_ms::integer)
                                      * interval '1 millisecond',
        -- These numbers hold until the next claim, whatever other workers declare meanwhile.
        lease_ms = coalesce(:lease_ms::integer, (picked.numbers ->> 0)::integer, :default_lease_ms::integer),
        heartbeat_ms = coalesce((picked.numbers ->> 1)::integer, :heartbeat_ms::integer),
        backoff_base_ms = coalesce((picked.numbers ->> 2)::integer, :base_ms::integer),
        backoff_cap_ms = coalesce((picked.numbers ->> 3)::integer, :cap_ms::integer),
        on_exhausted = picked.numbers ->> 5,
        renews = coalesce((picked.numbers ->> 4)::boolean, true), last_heartbeat_at = null, expires_at = null
    from picked
    where job.ctid = picked.tid
    -- Few columns, because a row is copied at each step; those of the log first, because reading one passes those before it.
    returning job.id, job.updated_at, job.seq, job.claims, job.counter, job.max_attempts, job.state,
              picked.trigger, picked.source,
              picked.type as event_type,
              job.correlation_id, job.trace_id, job.version, job.role, job.queue,
              job.type, job.tenant_id, job.priority, job.raises, job.payload, job.lease_expires_at, job.due_at,
              job.created_at, job.cancel_requested_at, job.idempotency_key, job.origin_letter, job.last_error,
              job.checkpoint, job.pending, job.blocked_at, job.hidden
),
logged as (
    insert into tenure.event (job_id, ts, seq, claims, counter, max_attempts, contract, trigger, from_state, to_state, actor,
                              reason, type, correlation_id, trace_id,
                              hidden)
    select id, updated_at, seq, claims, counter, max_attempts, :contract::text, trigger, source, state,
           :owner::text,
           case when event_type is not null then trigger end, event_type,
           -- The ids are made where they are missing, for contracts that index their log by them.
           case when event_type is not null
                then coalesce(correlation_id, md5((select prefix from installation) || ':' || 'correlation:' || id))
                when :logs_correlation::boolean then correlation_id end,
           case when event_type is not null
                then coalesce(trace_id, md5((select prefix from installation) || ':' || 'trace:' || id))
                when :logs_trace::boolean then trace_id end,
           case when upper(hidden) = seq then upper(hidden) - lower(hidden) end
    from moved
),
-- A claim counts how long its jobs were due; jobs that it takes from dead holders did not wait.
tallied as (
    insert into tenure.tally (at, number, seconds, bucket, contract, type, tenant_id, queue, trigger, path)
    select max(updated_at), count(*), sum(seconds), bucket, :contract::text, type, tenant_id, queue, trigger, source || '>' || state
    from (
        select updated_at, type, tenant_id, queue, trigger, source, state, seconds, tenure.duration_bucket(seconds) as bucket
        from (
            select updated_at, type, tenant_id, queue, trigger, source, state,
                   case when trigger = 'claim' then date_part('epoch', updated_at - greatest(due_at, created_at)) end as seconds
            from moved
        ) as waited
    ) as one
    group by type, tenant_id, queue, trigger, source, state, bucket
)
-- The contract is known to the caller, as are owner and token of a claim by one caller.
select id, version, state, role, queue, type, tenant_id, priority, claims, raises, counter, max_attempts, payload::text,
       lease_expires_at, due_at, created_at, updated_at, cancel_requested_at, trace_id, correlation_id, idempotency_key,
       origin_letter, last_error::text, checkpoint::text, pending::text, blocked_at
       , trigger
from (select) as answer left join moved on true
where id is not null or exists (select from chosen where is_expired)
