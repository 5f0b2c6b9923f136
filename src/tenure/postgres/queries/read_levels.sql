-- Read how many live jobs each contract, queue and state has, from the counts; of one tenant, or of all.
select counts.contract, counts.queue, side.state, sum(side.change)::bigint
from tenure.move_count as counts
cross join lateral (
    values (counts.from_state, -counts.number), (case when counts.ended then '' else counts.to_state end, counts.number)
) as side (state, change)
where counts.unit = 'ever' and counts.trigger not like 'refused%' and side.state <> ''
  and (:tenant::text is null or counts.tenant_id = :tenant::text)
group by 1, 2, 3
having sum(side.change) > 0
order by 1, 2, 3
