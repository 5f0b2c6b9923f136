-- Lock these flows, in the order of their ids: all that happens to the nodes of a flow happens under this lock.
select id, tenant_id, created_by, state, on_failure, nodes, open, cleanups, failed, tolerated, last_id
from tenure.flow
where id = any (:ids::bigint[])
order by id
for update
