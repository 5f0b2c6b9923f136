-- Delete the effects of jobs whose id range is dropped.
delete from tenure.effect
where (job_id, node) in (
    select job_id, node from tenure.effect
    where job_id >= :low::bigint and job_id < :high::bigint
    order by job_id, node
    limit :limit::bigint)
returning job_id
