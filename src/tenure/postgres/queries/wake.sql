-- While publishing is on, each of these jobs gets its wake-up, in the transaction that made it ready.
insert into tenure.outbox (job_id, contract, publish_at)
select id, contract, coalesce(due_at, clock_timestamp())
from tenure.job
where id = any (:ids::bigint[]) and role = 'ready' and (select publishing from tenure.installation)
order by id
