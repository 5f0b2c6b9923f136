-- Find flows with ended jobs that are not taken into account yet. Reads one row of each flow: a flow with many hides no other.
with recursive ended as (
    (select flow_id from tenure.flow_end order by flow_id limit 1)
    union all
    select (select flow_id from tenure.flow_end where flow_id > ended.flow_id order by flow_id limit 1)
    from ended where ended.flow_id is not null
)
select flow_id from ended where flow_id is not null limit :limit::bigint
