-- List the ids of nodes of a flow, members too, a page at a time.
select id from tenure.flow_node
where flow_id = :id::bigint and id > :after::bigint
order by id
limit :limit::bigint
