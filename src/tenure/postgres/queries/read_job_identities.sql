-- Read what never changes of each of these jobs, live or finished: contract, version, tenant, type, and its node in a flow.
select id, contract, version, tenant_id, type, flow_node from tenure.job where id = any (:ids::bigint[])
union all
select id, contract, version, tenant_id, type, flow_node from tenure.job_done where id = any (:ids::bigint[])
