-- Read contract, version, tenant and type of each of these jobs, live or finished.
select id, contract, version, tenant_id, type from tenure.job where id = any (:ids::bigint[])
union all
select id, contract, version, tenant_id, type from tenure.job_done where id = any (:ids::bigint[])
