-- Delete the events that workers reported of jobs whose id range is dropped.
delete from tenure.emitted
where id in (
    select id from tenure.emitted
    where job_id >= :low::bigint and job_id < :high::bigint
    order by job_id
    limit :limit::bigint)
returning id
