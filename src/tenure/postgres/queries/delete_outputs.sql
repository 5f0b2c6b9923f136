-- Delete the records of outputs of jobs whose id range is dropped.
delete from tenure.dataset_output
where (job_id, n) in (
    select job_id, n from tenure.dataset_output
    where job_id >= :low::bigint and job_id < :high::bigint
    order by job_id, n
    limit :limit::bigint)
returning job_id
