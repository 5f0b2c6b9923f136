-- Read the counts of a unit since a time, by contract, type, tenant (empty unless :by_tenant), hop and bucket; of one tenant, or of all.
-- Roll-ups are summed before they are joined with their groups: a type has one row per minute and hop, and one group.
with since as materialized (
    select case when :since_s::double precision is null then '-infinity'
                else date_trunc(:unit::text, clock_timestamp() - :since_s::double precision * interval '1 second', 'UTC') end as at
),
folded as materialized (
    select group_id, trigger, from_state, to_state, bucket, sum(number) as number, sum(seconds) as seconds
    from tenure.rollup
    where unit = :unit::text and start >= (select at from since)
    group by group_id, trigger, from_state, to_state, bucket
)
select counts.contract, counts.type, case when :by_tenant::boolean then counts.tenant_id else '' end, counts.trigger, counts.from_state, counts.to_state, counts.bucket,
       sum(counts.number)::bigint, sum(counts.seconds)
from (
    select tally_group.contract, tally_group.type, tally_group.tenant_id, trigger, from_state, to_state, bucket, number, seconds
    from folded join tenure.tally_group on tally_group.id = folded.group_id
    union all
    select contract, type, tenant_id, trigger, states[k], states[k + 1],
           case when k = 1 then coalesce(bucket, -1::smallint) else -1::smallint end, number,
           case when k = 1 then coalesce(seconds, 0) else 0 end
    from tenure.tally
    cross join lateral string_to_array(path, '>') as states
    cross join lateral generate_series(1, cardinality(states) - 1) as k
    where date_trunc(case :unit::text when 'ever' then 'hour' else :unit::text end, at, 'UTC') >= (select since.at from since)
) as counts
where (:tenant::text is null or counts.tenant_id = :tenant::text)
group by 1, 2, 3, 4, 5, 6, 7
