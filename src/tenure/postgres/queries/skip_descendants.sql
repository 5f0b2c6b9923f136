-- Skip the nodes that need one of these, directly or not. Returns how many of each flow.
with recursive below as (
    select unnest(children) as id from tenure.flow_node where id = any (:ids::bigint[])
    union
    select unnest(node.children) from below
    cross join lateral (select children from tenure.flow_node where flow_node.id = any (array[below.id])) as node
),
skipped as (
    update tenure.flow_node set state = 'skipped', finished_at = clock_timestamp()
    where id = any (array(select id from below)) and state = 'waiting'
    returning flow_id
)
select flow_id, count(*) from skipped group by flow_id
