-- Record that a node of a held job has had its effect, once per job and node over all attempts.
with locked as materialized (
    select id, state, role, claims, lease_owner, lease_expires_at, last_heartbeat_at, heartbeat_ms, started_at,
           pending is not null as compensating,
           contract = :contract::text and version = :version::text as is_ours,
           tenure.is_holder(claims, coalesce(lease_token, finisher), :claims::integer, :token::uuid) as is_holder
    from tenure.job
    where id = :id::bigint
    for update
),
decided as materialized (
    select clocked.*,
           case
               when not is_ours then 'contract'
               when not is_holder or :forfeits::boolean and (
                   tenure.lease_expired(lease_expires_at, t)
                   or tenure.heartbeats_missed(
                       last_heartbeat_at, coalesce(heartbeat_ms, :heartbeat_ms::integer), :missed::integer, t)
               ) then 'stale'
               when role not in ('leased', 'active') then 'state'
               when compensating then 'compensating'
           end as refusal
    from (select locked.*, clock_timestamp() as t from locked) as clocked
),
recorded as (
    insert into tenure.effect (job_id, node, claims, at, result, compensable)
    select id, :node::text, claims, t, :result::jsonb, :compensable::boolean from decided where refusal is null
    on conflict (job_id, node) do nothing
    returning job_id
),
-- On the row, where every statement that waits for it sees it.
marked as (
    update tenure.job set undoable = true
    from recorded
    where job.id = any (array[recorded.job_id]) and :compensable::boolean and job.undoable is null
)
select refusal, state, case when not is_holder then lease_owner end as holder, started_at as since,
       exists (select from recorded) as is_new
from decided
