-- The range's tables are gone: so is what only its jobs needed.
with effects as (
    delete from tenure.effect where job_id >= :low::bigint and job_id < :high::bigint
),
reruns as (
    delete from tenure.rerun where job_id >= :low::bigint and job_id < :high::bigint
)
delete from tenure.range where low = :low::bigint
