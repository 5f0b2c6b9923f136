-- List the id ranges that may be dropped: first those whose drop was begun, then full and old ones without a live job, and
-- without a node of a flow that has not ended: the ids of its jobs were reserved when the flow was created.
-- Whether their jobs all ended long ago is looked up range by range (range_ended_since.sql).
select low, high, leaving is not null as begun
from tenure.range
where not exists (select from tenure.range where taken > clock_timestamp()) and (
    leaving is not null
    or made_at < clock_timestamp() - :keep_sec::double precision * interval '1 second'
    and high <= (select last_value from tenure.job_id_seq)
    and not exists (select from tenure.job where job.id >= range.low and job.id < range.high)
    and not exists (
        select from tenure.flow
        where ended_at is null and first_id < range.high and last_id >= range.low and exists (
            select from tenure.flow_node
            where flow_node.flow_id = flow.id and job_id >= range.low and job_id < range.high))
)
order by leaving is null, low
