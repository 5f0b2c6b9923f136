-- List those of these contracts that have a job which could be claimed from these queues now: one question for all.
with clock as materialized (
    select clock_timestamp() as t
),
wanted as materialized (
    -- A contract's versions come as one text, separated by line feeds: arrays of arrays must be of one length.
    select name, array(select v from string_to_table(versions, E'\n') as v order by v collate "C") as versions,
           -- NULL: any type.
           case when :types::text[] is not null
                then array(select t from unnest(:types::text[]) as t order by t collate "C") end as types
    from unnest(:contracts::text[], :each_versions::text[]) as c (name, versions)
)
select name from clock, wanted
where exists (
    select from tenure.lanes(name, versions, :queues::text[], types, null, :tenant::text, '{}', 1, clock.t)
    where coalesce(:tenant::text, 'default') = 'default'
)
-- Tenants other than `default` have an index of their own.
or exists (
    select from tenure.tenant_lanes(name, versions, :queues::text[], types, null, :tenant::text, '{}', 1, clock.t)
    where :tenant::text <> 'default'
)
-- Where a contract reclaims in place, or closes expired leases by the claim, a lease that ran out is work too.
or exists (
    select from tenure.job
    where contract = name and role in ('leased', 'active', 'settling') and queue = any (:queues::text[])
      and tenure.lease_expired(lease_expires_at, clock.t) and version = any (versions)
      and (types is null or type = any (types)) and (:tenant::text is null or tenant_id = :tenant::text)
)
