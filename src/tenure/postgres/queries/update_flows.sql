-- Write the counts of these flows, which are locked; a flow whose nodes have all ended ends.
update tenure.flow
set state = new.state, nodes = new.nodes, open = new.open, cleanups = new.cleanups, failed = new.failed,
    tolerated = new.tolerated, last_id = new.last_id,
    ended_at = case when new.state not in ('running', 'cancelling') then coalesce(flow.ended_at, clock_timestamp()) end
from unnest(
    :ids::bigint[], :states::text[], :nodes::integer[], :opens::integer[], :cleanups::integer[], :failures::integer[],
    :tolerated::integer[], :last_ids::bigint[]
) as new (id, state, nodes, open, cleanups, failed, tolerated, last_id)
where flow.id = new.id
