-- What was answered to these requests when they came first? (A holder's key is kept on the log row of its hop.)
select event.job_id, event.request_key, event.request_hash, event.trigger, event.from_state, event.claims, event.counter,
       event.ts, event.answer
from unnest(:ids::bigint[], :keys::text[]) as asked (job_id, key)
cross join lateral (
    select * from tenure.event where event.job_id = asked.job_id and event.request_key = asked.key
) as event
