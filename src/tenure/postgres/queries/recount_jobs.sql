-- Correct the counts of live jobs by those that are there; return how many groups were wrong.
-- For moves that nothing counted: by workers of a version without counts, while it is replaced. It reads all live jobs; one
-- snapshot serves both sides, so moves meanwhile disturb nothing.
with live as materialized (
    select contract, type, tenant_id, queue, state, count(*) as number from tenure.job
    group by contract, type, tenant_id, queue, state
),
counted as materialized (
    select contract, type, tenant_id, queue, side.state, sum(number * side.sign) as number
    from tenure.move_count cross join lateral (values (from_state, -1), (case when ended then '' else to_state end, 1))
        as side (state, sign)
    where unit = 'ever' and trigger not like 'refused%' and side.state <> ''
    group by contract, type, tenant_id, queue, side.state
),
added as (
    insert into tenure.tally (number, contract, type, tenant_id, queue, trigger, path)
    select coalesce(live.number, 0) - coalesce(counted.number, 0), coalesce(live.contract, counted.contract),
           coalesce(live.type, counted.type), coalesce(live.tenant_id, counted.tenant_id),
           coalesce(live.queue, counted.queue), 'recount', '>' || coalesce(live.state, counted.state)
    from live full join counted
        on (live.contract, live.type, live.tenant_id, live.queue, live.state)
         = (counted.contract, counted.type, counted.tenant_id, counted.queue, counted.state)
    where coalesce(live.number, 0) <> coalesce(counted.number, 0)
    returning 1
)
select count(*) from added
