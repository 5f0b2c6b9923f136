-- Tell whether every transaction has ended that could still insert a job into this id range, and whether a live job is in it.
select leaving < pg_snapshot_xmin(pg_current_snapshot()) as quiet,
       exists (select from tenure.job where job.id >= range.low and job.id < range.high) as lives
from tenure.range
where low = :low::bigint
