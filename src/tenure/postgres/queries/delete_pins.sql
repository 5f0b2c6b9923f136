-- Delete the pins of jobs whose id range is dropped.
delete from tenure.dataset_pin
where (job_id, dataset_id, writes) in (
    select job_id, dataset_id, writes from tenure.dataset_pin
    where job_id >= :low::bigint and job_id < :high::bigint
    order by job_id, dataset_id, writes
    limit :limit::bigint)
returning job_id
