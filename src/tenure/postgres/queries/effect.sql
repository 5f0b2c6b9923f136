-- May this holder record that a node of its job has had its effect? Once per job and node, over all attempts.
with locked as materialized (
    select id, state, role, claims, lease_owner, lease_expires_at, last_heartbeat_at, heartbeat_ms, started_at,
           pending is not null as compensating,
           contract = :contract::text and version = :version::text as ours,
           (claims, coalesce(lease_token, finisher)) is not distinct from (:claims::integer, :token::uuid) as proven
    from tenure.job
    where id = :id::bigint
    for update
),
told as materialized (
    select clocked.*,
           case
               when not ours then 'contract'
               when not proven or :forfeits::boolean and (
                   coalesce(lease_expires_at < t, false)
                   or coalesce(last_heartbeat_at + :missed::integer * coalesce(heartbeat_ms, :heartbeat_ms::integer)
                               * interval '1 millisecond' < t, false)
               ) then 'stale'
               when role not in ('leased', 'active') then 'state'
               when compensating then 'compensating'
           end as refusal
    from (select locked.*, clock_timestamp() as t from locked) as clocked
),
fresh as (
    insert into tenure.effect (job_id, node, claims, at, result, compensable)
    select id, :node::text, claims, t, :result::jsonb, :compensable::boolean from told where refusal is null
    on conflict (job_id, node) do nothing
    returning job_id
),
-- On the row, where everybody who waits for it sees it.
marked as (
    update tenure.job set undoable = true
    from fresh
    where job.id = any (array[fresh.job_id]) and :compensable::boolean and job.undoable is null
)
select refusal, state, case when not proven then lease_owner end as holder, started_at as since,
       exists (select from fresh) as fresh
from told
