-- Set these settling jobs aside: one dead letter each, written while the job still stands before the record.
insert into tenure.dead_letter (
    job_id, contract, tenant_id, type, queue, priority, max_attempts, reason_code, stage, last_error, counter, claims,
    last_owner, last_lease_expires_at, correlation_id, trace_id, payload, failed_at)
select job.id, job.contract, job.tenant_id, job.type, job.queue, job.priority, job.max_attempts,
       -- Only a spent budget is one; what was given up for another reason says so.
       case when entered.trigger in ('fatal', 'dead_letter') then coalesce(entered.reason, entered.trigger)
            else :letter::text end,
       coalesce(job.last_error ->> 'stage', 'exec'),
       coalesce(job.last_error, jsonb_build_object('message', :letter::text)), job.counter, job.claims,
       taken.actor, null, coalesce(job.correlation_id, tenure.made_id('correlation', job.id)),
       coalesce(job.trace_id, tenure.made_id('trace', job.id)), job.payload,
       coalesce((select min(ts) from tenure.event where event.job_id = job.id and facts ? 'error'), job.updated_at)
from tenure.job left join lateral (
    select actor from tenure.event
    where event.job_id = job.id and event.trigger in ('claim', 'reclaim')
    order by seq desc limit 1
) as taken on true
left join lateral (
    select trigger, reason from tenure.event
    where event.job_id = job.id and event.hop and event.trigger <> 'settle'
    order by seq desc limit 1
) as entered on true
where job.id = any (:ids::bigint[]) and job.role = 'settling'
order by job.id
on conflict (job_id) do nothing
