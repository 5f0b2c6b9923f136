-- Which effects of these jobs are to be undone, newest first, before the failure that their holders report ends them?
--
-- The failure waits on the row, under the same fence as the move it stands for; a repeat keeps the first one.
with locked as materialized (
    select asked.n, asked.pending as failure, row.*
    from unnest(:ids::bigint[], :claims::integer[], :tokens::uuid[], :pendings::jsonb[])
        with ordinality as asked (id, claims, token, pending, n)
    cross join lateral (
        select id, state, claims as had, counter, lease_token, lease_expires_at, last_heartbeat_at, heartbeat_ms
        from tenure.job
        where job.id = asked.id
        for update
    ) as row
    where (row.had, row.lease_token) = (asked.claims, asked.token)
),
told as materialized (
    select * from (select locked.*, clock_timestamp() as t from locked) as clocked
    where not (:forfeits::boolean and (
        coalesce(lease_expires_at < t, false)
        or coalesce(last_heartbeat_at + :missed::integer * coalesce(heartbeat_ms, :heartbeat_ms::integer)
                    * interval '1 millisecond' < t, false)))
),
kept as (
    update tenure.job
    set pending = coalesce(job.pending, told.failure)
    from told
    where job.id = told.id
)
select n, id, state, had, counter, t,
       array(select node from tenure.effect
             where job_id = told.id and compensable and compensated_at is null
             order by at desc, node) as nodes
from told
