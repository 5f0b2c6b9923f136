-- Which job was this one run again as, and which one does it run again?
select (select as_job_id from tenure.rerun where job_id = :id::bigint),
       (select job_id from tenure.rerun where as_job_id = :id::bigint)
