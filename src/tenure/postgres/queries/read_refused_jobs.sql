-- Read contract, type, tenant and queue of each of these jobs, live or finished.
select id, contract, type, tenant_id, queue from tenure.job where id = any (:ids::bigint[])
union all
select id, contract, type, tenant_id, queue from tenure.job_done where id = any (:ids::bigint[])
