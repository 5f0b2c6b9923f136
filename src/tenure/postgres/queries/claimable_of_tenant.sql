-- List the jobs that a claim would take now, without locking: to find those of them that cannot be logged.
-- Rendered from templates/claimable.template by `python -m tests.postgres.render`: change the template.
-- Only jobs of one tenant other than `default` are read, by the index of such tenants.
with clock as materialized (
    select clock_timestamp() as t
),
lane as materialized (
    select lanes.*
    from clock, lateral
        tenure.tenant_lanes(
            :contract::text, array(select v from unnest(:versions::text[]) as v order by v collate "C"), :queues::text[],
            -- NULL: any type.
            case when :types::text[] is not null
                 then array(select t from unnest(:types::text[]) as t order by t collate "C") end,
            null, :tenant::text, '{}', :limit::bigint, clock.t
        ) as lanes
)
select due.id from clock, lane, lateral (
    select id from tenure.job
    where contract = :contract::text and queue = lane.queue and priority = lane.priority
      and type collate "C" = lane.type and version collate "C" = lane.version and role = 'ready'
      and quarantined_at is null and coalesce(due_at, '-infinity') <= clock.t
      and tenant_id = :tenant::text and tenant_id <> 'default'
    order by coalesce(due_at, '-infinity'), id
    limit lane.take
) as due
union all
select id from clock, tenure.job
where :reclaims::boolean and contract = :contract::text and role in ('leased', 'active', 'settling')
  and quarantined_at is null and queue = any (:queues::text[]) and tenure.lease_expired(lease_expires_at, clock.t)
  and version = any (:versions::text[]) and (:types::text[] is null or type = any (:types::text[]))
  and (:tenant::text is null or tenant_id = :tenant::text)
limit 2 * :limit::bigint
