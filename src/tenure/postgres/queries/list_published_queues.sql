-- List the published queues with the wake-ups that are due (counted up to a bound) and the age of the oldest.
select known.queue, known.url, known.seen_at, known.filled_to >= known.fill_end as is_filled,
       extract(epoch from clock_timestamp() - known.seen_at)::double precision as unseen_s,
       pending.count, pending.oldest_s, pending.last_error
from tenure.published_queue as known
cross join lateral (
    select count(*),
           extract(epoch from clock_timestamp() - min(coalesce(due_at, created_at)))::double precision as oldest_s,
           max(last_error) as last_error
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
