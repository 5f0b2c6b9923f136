-- Find the dead letters of these jobs.
select job_id, id from tenure.dead_letter where job_id = any (:ids::bigint[])
