-- The range's tables are gone, and with them what pointed there.
with reruns as (
    delete from tenure.rerun where job_id >= :low::bigint and job_id < :high::bigint
)
delete from tenure.range where low = :low::bigint
