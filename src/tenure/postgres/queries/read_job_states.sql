-- Read the contract, state and role of each of these jobs, live or finished.
select id, contract, state, role from tenure.job where id = any (:ids::bigint[])
union all
select id, contract, state, role from tenure.job_done where id = any (:ids::bigint[])
