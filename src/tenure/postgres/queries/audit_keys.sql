-- Idempotency keys of enqueues whose job is not there, although its range still is.
select key.tenant_id, key.key, key.job_id
from tenure.key
where key.verb = 'enqueue' and (:since::timestamptz is null or key.created_at >= :since::timestamptz)
  and exists (select from tenure.range where key.job_id >= range.low and key.job_id < range.high)
  and not exists (select from tenure.job where job.id = key.job_id)
  and not exists (select from tenure.job_done where job_done.id = key.job_id)
order by key.job_id
limit 1000
