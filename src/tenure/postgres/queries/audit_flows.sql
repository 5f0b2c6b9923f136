-- Read the next flows by id: the counts in their rows, and the same counts by their nodes.
-- A page ends after :limit flows, or where they have :nodes nodes.
select flow.id, flow.name, flow.state, flow.nodes, flow.open, flow.cleanups, flow.failed, flow.tolerated, counted.*
from (
    select page.*, sum(nodes) over (order by id) - nodes as before
    from (
        select * from tenure.flow
        where id > :after::bigint
          and (:since::timestamptz is null or ended_at is null or ended_at >= :since::timestamptz)
        order by id
        limit :limit::bigint
    ) as page
) as flow
cross join lateral (
    select count(*), count(*) filter (where state in ('waiting', 'started')),
           count(*) filter (where state = 'waiting' and is_cleanup), count(*) filter (where state in ('failed', 'cancelled')),
           count(*) filter (where state in ('failed', 'cancelled') and coalesce(on_failure, flow.on_failure) = 'continue')
    from tenure.flow_node
    where flow_id = flow.id
) as counted
where flow.before < :nodes::bigint
order by flow.id
