-- Read how often the jobs of a contract moved since a time, by trigger and hop, from the counts; of one tenant, or of all.
-- Refusals, renewals and changes of the queue are no moves. Roll-ups are read once; their groups are found first.
with since as materialized (
    select date_trunc(:unit::text, clock_timestamp() - :since_s::double precision * interval '1 second', 'UTC') as at
),
own as materialized (
    select id from tenure.tally_group
    where contract = :contract::text and (:tenant::text is null or tenant_id = :tenant::text)
)
select counts.trigger, counts.from_state, counts.to_state, sum(counts.number)::bigint
from (
    select trigger, from_state, to_state, number
    from tenure.rollup
    where unit = :unit::text and start >= (select at from since) and group_id in (select id from own)
    union all
    select trigger, states[k], states[k + 1], number
    from tenure.tally
    cross join lateral string_to_array(path, '>') as states
    cross join lateral generate_series(1, cardinality(states) - 1) as k
    where contract = :contract::text and (:tenant::text is null or tenant_id = :tenant::text)
      and date_trunc(:unit::text, at, 'UTC') >= (select since.at from since)
) as counts
where counts.trigger not in ('queue_changed', 'recount', 'renew') and counts.trigger not like 'refused%'
group by 1, 2, 3
order by 2, 3, 1
