-- Find idempotency keys of jobs between :after and :before that are not there, although their id range is.
select key.job_id, key.tenant_id, key.key
from (
    select * from tenure.key
    where job_id > :after::bigint and job_id < :before::bigint and (:ids::bigint[] is null or job_id = any (:ids::bigint[]))
      and exists (select from tenure.range where leaving is null and job_id >= low and job_id < high)
    offset 0
) as key
where not exists (select from tenure.job where job.id = key.job_id)
  and not exists (
      select from tenure.job_done
      where job_done.id = key.job_id and job_done.id > :after::bigint and job_done.id < :before::bigint)
order by key.job_id
limit 1000
