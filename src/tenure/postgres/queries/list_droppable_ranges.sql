-- List the id ranges that may be dropped: first those whose drop was begun, then full and old ones without a live job.
-- Whether their jobs all ended long ago is looked up range by range (range_ended_since.sql).
select low, high, leaving is not null as begun
from tenure.range
where not exists (select from tenure.range where taken > clock_timestamp()) and (
    leaving is not null
    or made_at < clock_timestamp() - :keep_sec::double precision * interval '1 second'
    and high <= (select last_value from tenure.job_id_seq)
    and not exists (select from tenure.job where job.id >= range.low and job.id < range.high)
)
order by leaving is null, low
