-- Insert a new wake-up for each job that is still ready long after its last one: that one may have been lost.
-- Each published wake-up is looked at once; while its job is quarantined it is looked at again. The new wake-up of a job
-- in a paused queue waits until the queue is resumed (`take_wakeups`).
-- `id = any (array[…])` is `id = …` by which no join can be ordered: with the statistics of a table that was just emptied
-- the planner would walk all ready jobs.
with checked as materialized (
    select outbox.id, outbox.job_id, job.id is not null as waits, job.is_held_back, job.contract, job.queue
    from (
        select id, job_id from tenure.outbox
        where check_at <= (select clock_timestamp()) -- no volatile function: it would bound no range
        order by check_at
        limit :limit::bigint
        for update skip locked
    ) as outbox
    left join lateral (
        select id, contract, queue, quarantined_at is not null as is_held_back
        from tenure.job
        where id = any (array[outbox.job_id]) and role = 'ready' and coalesce(due_at, '-infinity') <= clock_timestamp()
          and exists (select from tenure.published_queue where published_queue.queue = job.queue)
        offset 0 -- for each wake-up, after its lock
    ) as job on true
), marked as (
    update tenure.outbox
    set check_at = case
        when checked.is_held_back then clock_timestamp() + :check_ms::bigint * interval '1 millisecond'
    end
    from checked
    where outbox.id = any (array[checked.id])
)
insert into tenure.outbox (job_id, contract, queue, publish_at, due_at)
select distinct on (job_id) job_id, contract, queue, clock_timestamp(), clock_timestamp()
from checked
where waits and not is_held_back
  -- A later wake-up of the same job is published, or will be, and is checked itself.
  and not exists (
      select from tenure.outbox as later
      where later.job_id = any (array[checked.job_id]) and later.id > checked.id
        and (later.published_at is null or later.check_at is not null)
  )
returning job_id
