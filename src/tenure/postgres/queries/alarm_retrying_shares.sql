-- Read, for each tenant and contract, how many live jobs wait for a retry and how many there are; from counts of moves.
with machine as materialized (
    select * from unnest(:contracts::text[], :states::text[]) as m (contract, state)
),
moved as materialized (
    select contract, tenant_id, from_state, to_state, ended, sum(number) as number
    from tenure.move_count
    where unit = 'ever' and contract = any (:contracts::text[]) and trigger not like 'refused%'
    group by contract, tenant_id, from_state, to_state, ended
)
select contract, tenant_id, greatest(sum(waiting), 0)::bigint as waiting, sum(live)::bigint as live
from (
    select moved.contract, tenant_id,
           number * ((to_state <> '' and not ended)::integer - (from_state <> '')::integer) as live,
           number * ((not ended and (contract, to_state) in (select contract, state from machine))::integer
                     - ((contract, from_state) in (select contract, state from machine))::integer) as waiting
    from moved
) as each
group by contract, tenant_id
having sum(live) >= :least::bigint
order by contract, tenant_id
