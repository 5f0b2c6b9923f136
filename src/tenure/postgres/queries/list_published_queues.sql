-- List the published queues with the wake-ups that are due (counted up to a bound) and the age of the oldest.
-- Those of a paused queue wait until it is resumed: they have no age.
select known.queue, known.url, known.seen_at, known.filled_to >= known.fill_end as is_filled,
       extract(epoch from clock_timestamp() - known.seen_at)::double precision as unseen_s,
       pending.count,
       case when queue.paused_at is null
            then extract(epoch from clock_timestamp() - greatest(pending.oldest, case when pending.count > 0 then queue.resumed_at end))::double precision
       end as oldest_s,
       pending.last_error, queue.paused_at is not null as is_paused
from tenure.published_queue as known
left join tenure.queue on queue.name = known.queue
cross join lateral (
    select count(*), min(coalesce(due_at, created_at)) as oldest, max(last_error) as last_error
    from (
        select * from tenure.outbox
        where published_at is null and queue = known.queue and coalesce(due_at, created_at) <= clock_timestamp()
          -- One that is taken, or was not taken by the message queue, waits for a minute at most.
          and publish_at <= (select clock_timestamp()) + interval '2 minutes'
        order by publish_at
        limit :bound::bigint
    ) as due
) as pending
order by known.queue
