-- Read the dead letter that each of these jobs, live or finished, was made from.
select id, origin_letter from tenure.job where id = any (:ids::bigint[])
union all
select id, origin_letter from tenure.job_done where id = any (:ids::bigint[])
