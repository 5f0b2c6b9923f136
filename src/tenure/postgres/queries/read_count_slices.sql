-- Read how many jobs of each type were made, began and ended in each minute or hour since a time; of one tenant, or of all.
-- Roll-ups are summed before they are joined with their groups.
with since as materialized (
    select date_trunc(:unit::text, clock_timestamp() - :since_s::double precision * interval '1 second', 'UTC') as at
),
folded as materialized (
    select start, group_id, sum(number) filter (where trigger in ('enqueue', 'requeue')) as made,
           sum(number) filter (where trigger in ('claim', 'reclaim')) as claimed, sum(number) filter (where ended) as ended
    from tenure.rollup
    where unit = :unit::text and start >= (select at from since)
    group by start, group_id
)
select counts.start, counts.contract, counts.type, sum(counts.made)::bigint, sum(counts.claimed)::bigint,
       sum(counts.ended)::bigint
from (
    select start, contract, type, tenant_id, made, claimed, ended
    from folded join tenure.tally_group on tally_group.id = folded.group_id
    union all
    select date_trunc(:unit::text, tally.at, 'UTC'), contract, type, tenant_id,
           case when trigger in ('enqueue', 'requeue') then number end,
           case when trigger in ('claim', 'reclaim') then number end, case when ended then number end
    from tenure.tally, since
    where date_trunc(:unit::text, tally.at, 'UTC') >= since.at
) as counts
where (:tenant::text is null or counts.tenant_id = :tenant::text)
group by 1, 2, 3
having sum(counts.made) > 0 or sum(counts.claimed) > 0 or sum(counts.ended) > 0
order by 1
