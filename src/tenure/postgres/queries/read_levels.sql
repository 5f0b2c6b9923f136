-- Read how many live jobs each contract, queue and state has, from the counts; of one tenant, or of all.
-- Roll-ups are summed before they are joined with their groups: a group has one row per hop and bucket.
with folded as materialized (
    select group_id, from_state, to_state, ended, sum(number) as number
    from tenure.rollup
    where unit = 'ever' and trigger not like 'refused%'
    group by group_id, from_state, to_state, ended
)
select counts.contract, counts.queue, side.state, sum(side.change)::bigint
from (
    select contract, tenant_id, queue, from_state, to_state, ended, number
    from folded join tenure.tally_group on tally_group.id = folded.group_id
    union all
    select contract, tenant_id, queue, states[k], states[k + 1], ended and k = cardinality(states) - 1, number
    from tenure.tally
    cross join lateral string_to_array(path, '>') as states
    cross join lateral generate_series(1, cardinality(states) - 1) as k
    where trigger not like 'refused%'
) as counts
cross join lateral (
    values (counts.from_state, -counts.number), (case when counts.ended then '' else counts.to_state end, counts.number)
) as side (state, change)
where side.state <> '' and (:tenant::text is null or counts.tenant_id = :tenant::text)
group by 1, 2, 3
having sum(side.change) > 0
order by 1, 2, 3
