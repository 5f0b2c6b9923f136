-- Delete flows that ended longer than :keep_sec ago, with their nodes: at most :limit flows, and no further ones once these
-- have :most_nodes nodes.
with old as materialized (
    select locked.id
    from (
        select id, sum(nodes) over (order by ended_at, id) - nodes as before
        from (
            select id, ended_at, nodes from tenure.flow
            where ended_at < (select clock_timestamp()) - :keep_sec::double precision * interval '1 second'
            order by ended_at, id
            limit :limit::bigint
        ) as page
    ) as each
    cross join lateral (
        -- It may run again since.
        select id from tenure.flow
        where flow.id = any (array[each.id])
          and ended_at < (select clock_timestamp()) - :keep_sec::double precision * interval '1 second'
        for update skip locked
    ) as locked
    where each.before < :most_nodes::bigint
),
without_nodes as (
    delete from tenure.flow_node where flow_id = any (array(select id from old))
)
delete from tenure.flow where id = any (array(select id from old))
returning id
