-- Idempotency keys in these spans of ids whose job is not there, although its range is.
select key.job_id, key.tenant_id, key.key
from unnest(:lows::bigint[], :highs::bigint[]) as span (low, high)
join tenure.range on range.leaving is null and range.low <= span.high and range.high > span.low
cross join lateral (
    select * from tenure.key
    where job_id > span.low and job_id <= span.high and job_id >= range.low and job_id < range.high
    offset 0
) as key
where not exists (select from tenure.job where job.id = key.job_id)
  and not exists (select from tenure.job_done where job_done.id = key.job_id)
order by key.job_id
limit 1000
