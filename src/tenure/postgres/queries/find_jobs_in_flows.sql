-- Find those of these jobs that ran nodes of flows.
select job_id from tenure.flow_node where id = any (:ids::bigint[]) and job_id = id
union all
select job_id from tenure.flow_node where job_id = any (:ids::bigint[]) and job_id <> id
