-- Has every transaction ended that might still bring a job into this range, and has none brought one?
select leaving < pg_snapshot_xmin(pg_current_snapshot()) as quiet,
       exists (select from tenure.job where job.id >= range.low and job.id < range.high) as lives
from tenure.range
where low = :low::bigint
