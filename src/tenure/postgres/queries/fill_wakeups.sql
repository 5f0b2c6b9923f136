-- Insert wake-ups for jobs that were made before their queue was published: one step, of the next jobs by id.
-- Returns how many jobs the step has looked at, and in which queue; no row when every queue is filled.
with filling as materialized (
    select queue, filled_to, fill_end from tenure.published_queue
    where filled_to < fill_end
    order by queue
    limit 1
    for update skip locked
), looked_at as materialized (
    select job.id, job.contract, job.queue, job.role, job.due_at, filling.queue as wanted
    from filling
    cross join lateral (
        select * from tenure.job
        where job.id > filling.filled_to and job.id <= filling.fill_end
        order by job.id
        limit :limit::bigint
    ) as job
), woken as (
    insert into tenure.outbox (job_id, contract, queue, publish_at, due_at)
    select id, contract, queue, coalesce(due_at, clock_timestamp()), coalesce(due_at, clock_timestamp())
    from looked_at
    where queue = wanted and role = 'ready' and contract = any (:contracts::text[])
      and not exists (
          select from tenure.outbox
          where outbox.job_id = looked_at.id and (outbox.published_at is null or outbox.check_at is not null)
      )
    order by id
), moved_on as (
    update tenure.published_queue
    set filled_to = case
        when (select count(*) from looked_at) < :limit::bigint then filling.fill_end
        else (select max(id) from looked_at)
    end
    from filling
    where published_queue.queue = filling.queue
)
select queue, (select count(*) from looked_at) from filling
