-- Which id range may leave? A full one in which no job lives and all ended long ago; or one whose leaving was begun.
select low, high, leaving is not null as begun
from tenure.range
where not exists (select from tenure.range where taken > clock_timestamp()) and (
    leaving is not null
    or made_at < clock_timestamp() - :keep_sec::double precision * interval '1 second'
    and high <= (select last_value from tenure.job_id_seq)
    and not exists (select from tenure.job where job.id >= range.low and job.id < range.high)
    and not exists (
        select from tenure.job_done
        where job_done.id >= range.low and job_done.id < range.high
          and job_done.finished_at >= clock_timestamp() - :keep_sec::double precision * interval '1 second')
)
order by leaving is null, low
limit 1
