-- End these mapped nodes, whose members have all ended: as the worst of them, with the list of their results.
-- Results that are larger than a job could carry are not put together.
update tenure.flow_node
set state = case when tally.too_large then 'failed' else tally.state end,
    error = case when tally.too_large then 'the results of its members are too large together' end,
    result = case when flow_node.feeds and not tally.too_large then coalesce(tally.results, '[]') end,
    finished_at = clock_timestamp()
from unnest(:ids::bigint[]) as mapped (id)
cross join lateral (
    select case when bool_or(member.state = 'failed') then 'failed'
                when bool_or(member.state = 'cancelled') then 'cancelled' else 'succeeded' end as state,
           coalesce(sum(pg_column_size(member.result)) > :longest::bigint, false) as too_large,
           (select jsonb_agg(coalesce(one.result, 'null') order by one.place) from tenure.flow_node as one
            where one.part_of = mapped.id having sum(pg_column_size(one.result)) <= :longest::bigint) as results
    from tenure.flow_node as member
    where member.part_of = mapped.id
) as tally
where flow_node.id = mapped.id and flow_node.state = 'started'
returning flow_node.id, flow_node.flow_id, flow_node.state, flow_node.on_failure, flow_node.part_of, flow_node.is_cleanup
