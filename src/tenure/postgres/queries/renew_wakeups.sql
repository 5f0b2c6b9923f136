-- Insert a new wake-up for each job that is still ready long after its last one: that one may have been lost.
-- Each published wake-up is looked at once; while its queue is paused it is looked at again.
with checked as materialized (
    select outbox.id, outbox.job_id, job.id is not null as waits, paused.name is not null as is_paused,
           job.contract, job.queue
    from (
        select id, job_id from tenure.outbox
        where check_at <= (select clock_timestamp()) -- no volatile function: it would bound no range
        order by check_at
        limit :limit::bigint
        for update skip locked
    ) as outbox
    left join tenure.job
        on job.id = outbox.job_id and job.role = 'ready' and job.quarantined_at is null
        and coalesce(job.due_at, '-infinity') <= clock_timestamp()
        and job.queue in (select queue from tenure.published_queue)
    left join tenure.queue as paused on paused.name = job.queue and paused.paused_at is not null
), marked as (
    update tenure.outbox
    set check_at = case when checked.is_paused then clock_timestamp() + :check_ms::bigint * interval '1 millisecond' end
    from checked
    where outbox.id = checked.id
)
insert into tenure.outbox (job_id, contract, queue, publish_at, due_at)
select distinct on (job_id) job_id, contract, queue, clock_timestamp(), clock_timestamp()
from checked
where waits and not is_paused
  -- A later wake-up of the same job is published, or will be, and is checked itself.
  and not exists (
      select from tenure.outbox as later
      where later.job_id = checked.job_id and later.id > checked.id
        and (later.published_at is null or later.check_at is not null)
  )
returning job_id
