-- Claim due jobs for one caller, under a contract whose claim has one path and logs no indexed event: nearly every claim.
-- Rendered from templates/claim_plain.template by `python -m tests.postgres.render`: change the template.
--
-- It makes the same claim as claim.sql, without what most claims do not need. Where a claim needs more, this one takes no
-- job, inserts no key and answers one row without an id; its caller then makes the claim by claim.sql. That is so where
-- other claims have locked jobs of its lanes, where its jobs are too heavy for one answer or may be of too many id ranges,
-- where all of them have expired, and where its key was used before.
with
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
lane as materialized (
    select lanes.*
    from clock, wanted, lateral
        tenure.lanes(
            wanted.contract, wanted.versions, wanted.queues, wanted.types, :seen::text[], wanted.tenant, :positions::jsonb,
            :limit::bigint, clock.t
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
new_key as (
    insert into tenure.claim (key)
    select :claim_key::uuid
    from first
    where not is_expired
    having count(*) > 0
       -- Fewer than wanted, although a lane may have more: other claims have locked them.
       and ((select count(*) from first) = (select :limit::bigint)
            or (select count(*) < (select :limit::bigint) and not bool_or(counted) from lane))
       and (count(*) = 1 or sum(case when packed is null then size else 16 * size end) < (select :heaviest::bigint))
       and max(unit) - min(unit) < 8
    on conflict do nothing
    returning key
),
-- The lease runs from the clock; the log's time also rises when the clock steps back.
picked as materialized (
    select tid, t, greatest(t, updated_at + interval '1 microsecond') as ts, (select by_type from options) -> task as numbers
    from (
        select first.*, clock_timestamp() as t
        from first
        where not is_expired and exists (select from new_key)
        order by part, due, id -- the lanes of one priority were read one after the other
    ) as clocked
),
moved as (
    update tenure.job
    set state = :state::text, role = :role::text, counter = job.counter + :bump::integer,
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
              :trigger::text as trigger, :source::text as source,
              job.correlation_id, job.trace_id, job.version, job.role, job.queue,
              job.type, job.tenant_id, job.priority, job.raises, job.payload, job.lease_expires_at, job.due_at,
              job.created_at, job.cancel_requested_at, job.idempotency_key, job.origin_letter, job.last_error,
              job.checkpoint, job.pending, job.blocked_at, job.hidden
),
logged as (
    insert into tenure.event (job_id, ts, seq, claims, counter, max_attempts, contract, trigger, from_state, to_state, actor,
                              hidden)
    select id, updated_at, seq, claims, counter, max_attempts, :contract::text, trigger, source, state,
           :owner::text,
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
                   date_part('epoch', updated_at - greatest(due_at, created_at)) as seconds
            from moved
        ) as waited
    ) as one
    group by type, tenant_id, queue, trigger, source, state, bucket
)
-- The contract is known to the caller, as are owner and token of a claim by one caller.
select id, version, state, role, queue, type, tenant_id, priority, claims, raises, counter, max_attempts, payload::text,
       lease_expires_at, due_at, created_at, updated_at, cancel_requested_at, trace_id, correlation_id, idempotency_key,
       origin_letter, last_error::text, checkpoint::text, pending::text, blocked_at
from (select) as answer left join moved on true
where id is not null or exists (select from lane)
