-- List the nodes with which a flow was created: name and id.
select name, id from tenure.flow_node where flow_id = :id::bigint and part_of is null order by id
