-- Write a dead letter for each of these settling jobs, while the job is still in the state before the record.
insert into tenure.dead_letter (
    job_id, contract, tenant_id, type, queue, priority, max_attempts, reason_code, stage, last_error, counter, claims,
    last_owner, last_lease_expires_at, correlation_id, trace_id, payload, failed_at)
select job.id, job.contract, job.tenant_id, job.type, job.queue, job.priority, job.max_attempts,
       -- A spent budget has the path's reason; a failure that was given up for another reason has its own.
       case when entered.trigger in ('fatal', 'dead_letter') then coalesce(entered.reason, entered.trigger)
            else :letter::text end,
       coalesce(job.last_error ->> 'stage', 'exec'),
       coalesce(job.last_error, jsonb_build_object('message', :letter::text)), job.counter, job.claims,
       job.last_owner, job.last_lease_expires_at, coalesce(job.correlation_id, tenure.made_id('correlation', job.id)),
       coalesce(job.trace_id, tenure.made_id('trace', job.id)), job.payload,
       coalesce(job.first_failed_at, job.updated_at)
from tenure.job left join lateral (
    select trigger, reason from tenure.event
    where event.job_id = job.id and event.hop and event.trigger <> 'settle'
      and event.job_id = any (:ids::bigint[]) -- written into the text: the partitions of these jobs alone
    order by seq desc limit 1
) as entered on true
where job.id = any (:ids::bigint[]) and job.role = 'settling'
order by job.id
on conflict (job_id) do nothing
