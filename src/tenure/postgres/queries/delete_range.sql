-- Delete an id range whose partitions are dropped, and the reruns of its jobs.
with reruns as (
    delete from tenure.rerun where job_id >= :low::bigint and job_id < :high::bigint
)
delete from tenure.range where low = :low::bigint
