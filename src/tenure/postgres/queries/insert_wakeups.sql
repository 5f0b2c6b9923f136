-- Insert a wake-up for each of these ready jobs whose queue is published.
insert into tenure.outbox (job_id, contract, queue, publish_at, due_at)
select id, contract, queue, at, at
from (
    select id, contract, queue, coalesce(due_at, clock_timestamp()) as at
    from tenure.job
    where id = any (:ids::bigint[]) and role = 'ready' and queue in (select queue from tenure.published_queue)
) as woken
order by id
