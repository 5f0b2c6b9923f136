-- List wake-ups that are not published, those that are due first.
select id, job_id, contract, queue, created_at, publish_at, tries, last_error,
       extract(epoch from clock_timestamp() - coalesce(due_at, created_at))::double precision as age_s
from tenure.outbox
where published_at is null
order by publish_at, id
limit :limit::bigint
