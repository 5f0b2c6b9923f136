-- Which of these contracts have a job that could be claimed from these queues now? One question instead of a claim of each.
with clock as materialized (
    select clock_timestamp() as t
)
select name from clock, unnest(:contracts::text[]) as name
where exists (
    select from unnest(:queues::text[]) as lane (queue), generate_series(0, 9) as p
    cross join lateral (
        select from tenure.job
        where contract = name and queue = lane.queue and priority = p and role = 'ready'
          and coalesce(due_at, '-infinity') <= clock.t
          --tenanted: and tenant_id = :tenant::text
          --apart: and tenant_id <> 'default'
        order by coalesce(due_at, '-infinity'), id
        limit 1
    ) as ready
)
-- Where a contract reclaims in place, or closes by the claim, a lease that ran out is something to claim.
or exists (
    select from tenure.job
    where contract = name and role in ('leased', 'active', 'settling') and queue = any (:queues::text[])
      and lease_expires_at < clock.t
      --tenanted: and tenant_id = :tenant::text
)
