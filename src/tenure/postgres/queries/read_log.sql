-- Read the log of this job in order.
select job_id, seq, ts, hop, trigger, from_state, to_state, claims, counter, max_attempts, actor, reason, facts
from tenure.event
where job_id = :id::bigint and seq > :after::integer
order by seq
limit :limit::bigint
