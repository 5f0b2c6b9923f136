-- Read what never changes of each of these jobs, live or finished: contract, version, tenant, type, its node in a flow, and
-- whether it reads or writes datasets.
select id, contract, version, tenant_id, type, flow_node, exists (select from tenure.dataset_pin where job_id = job.id)
from tenure.job where id = any (:ids::bigint[])
union all
select id, contract, version, tenant_id, type, flow_node, exists (select from tenure.dataset_pin where job_id = job_done.id)
from tenure.job_done where id = any (:ids::bigint[])
