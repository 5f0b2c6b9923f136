-- Under which contract and version, and whose, is each of these jobs, live or finished?
select id, contract, version, tenant_id from tenure.job where id = any (:ids::bigint[])
union all
select id, contract, version, tenant_id from tenure.job_done where id = any (:ids::bigint[])
