-- Which id ranges may leave? Full ones, in which no job lives and all ended long ago; and those whose leaving was begun.
select low, high, leaving
from tenure.range
where leaving or (
    made_at < clock_timestamp() - :keep_sec::double precision * interval '1 second'
    and high <= (select last_value from tenure.job_id_seq)
    and not exists (select from tenure.job where job.id >= range.low and job.id < range.high)
    and not exists (
        select from tenure.job_done
        where job_done.id >= range.low and job_done.id < range.high
          and job_done.finished_at >= clock_timestamp() - :keep_sec::double precision * interval '1 second')
)
order by low
limit 1
