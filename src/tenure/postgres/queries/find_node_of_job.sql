-- Find the node that this job ran.
select id, flow_id from tenure.flow_node where id = :job_id::bigint and job_id = :job_id::bigint
union all
select id, flow_id from tenure.flow_node where job_id = :job_id::bigint and job_id <> id
