-- Count, for each tenant and contract, the jobs that entered these states lately, and how many did before, per window; and by minute.
with clock as materialized (
    select clock_timestamp() as t, :window_s::double precision * interval '1 second' as window
),
wanted as materialized (
    select * from unnest(:contracts::text[], :triggers::text[], :states::text[]) as w (contract, trigger, state)
),
entry as materialized (
    select counted.contract, counted.tenant_id, counted.unit, counted.start, counted.number
    from clock, tenure.move_count as counted
    join wanted on (wanted.contract, wanted.trigger, wanted.state) = (counted.contract, counted.trigger, counted.to_state)
    where (counted.unit = 'minute' and counted.start >= date_trunc('minute', t - clock.window))
       or (counted.unit = 'hour' and counted.start >= date_trunc('hour', t - :before_s::double precision * interval '1 second')
           and counted.start < date_trunc('hour', t - clock.window))
)
select contract, tenant_id, coalesce(sum(number) filter (where unit = 'minute'), 0)::bigint as lately,
       (coalesce(sum(number) filter (where unit = 'hour'), 0) * :window_s::double precision
        / :before_s::double precision)::double precision as usual,
       array_agg(start order by start) filter (where unit = 'minute') as minutes,
       array_agg(number order by start) filter (where unit = 'minute') as numbers
from entry
group by contract, tenant_id
having sum(number) filter (where unit = 'minute') > 0
order by contract, tenant_id
