-- Insert a wake-up for each of these ready jobs into the outbox, while publishing is on.
insert into tenure.outbox (job_id, contract, publish_at)
select id, contract, coalesce(due_at, clock_timestamp())
from tenure.job
where id = any (:ids::bigint[]) and role = 'ready' and (select publishing from tenure.installation)
order by id
