-- Has every transaction ended that might still bring a job into this range, and has none brought one, alive or just ended?
select leaving < pg_snapshot_xmin(pg_current_snapshot()) as quiet,
       exists (select from tenure.job where job.id >= range.low and job.id < range.high)
       or exists (
           select from tenure.job_done
           where job_done.id >= range.low and job_done.id < range.high
             and job_done.finished_at >= clock_timestamp() - :keep_sec::double precision * interval '1 second') as lives
from tenure.range
where low = :low::bigint
