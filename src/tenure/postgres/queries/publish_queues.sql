-- Publish the wake-ups of these queues from now on, or say that a publisher still does; return those that are new.
-- When it is time, the fill begins again, with the jobs that were not to be seen before; it skips those with a wake-up.
insert into tenure.published_queue as known (queue, url, fill_end, added_at, seen_at)
select given.queue, given.url, coalesce(pg_sequence_last_value('tenure.job_id_seq'), 0), clock.t, clock.t
from (select clock_timestamp() as t) as clock, unnest(:queues::text[], :urls::text[]) as given (queue, url)
order by given.queue
on conflict (queue) do update
set url = excluded.url, seen_at = clock_timestamp(),
    (filled_to, fill_end, fill_again_at) = (
        select case when again.is_time then 0 else known.filled_to end,
               case when again.is_time then excluded.fill_end else known.fill_end end,
               case when again.is_time then clock_timestamp() + interval '1 hour' else known.fill_again_at end
        from (
            select known.filled_to >= known.fill_end and known.fill_again_at <= clock_timestamp() as is_time
            offset 0 -- once
        ) as again
    )
returning known.queue, known.seen_at = known.added_at as is_new
