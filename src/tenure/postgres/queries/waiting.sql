-- Which waiting jobs are due to be made ready? Skip locked rows: another process promotes or cancels them.
select id
from tenure.job
where contract = :contract::text and version = :version::text and role = 'waiting' and due_at <= clock_timestamp()
order by due_at, id
limit :limit::bigint
for update skip locked
