-- Publish the wake-ups of these queues from now on, or say that a publisher still does; return those that are new.
insert into tenure.published_queue as known (queue, url, fill_end)
select given.queue, given.url, coalesce(pg_sequence_last_value('tenure.job_id_seq'), 0)
from unnest(:queues::text[], :urls::text[]) as given (queue, url)
order by given.queue
on conflict (queue) do update set url = excluded.url, seen_at = clock_timestamp()
returning known.queue, known.seen_at = known.added_at as is_new
