-- Find the log rows of these jobs that carry one of these request keys, with the answers that were given then.
select job_id, request_key, request_hash, trigger, from_state, claims, counter, ts, answer
from tenure.event
where job_id = any (:ids::bigint[]) and request_key = any (:keys::text[])
