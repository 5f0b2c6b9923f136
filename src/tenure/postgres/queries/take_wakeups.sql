-- Take wake-ups that are due, for some seconds: until then no other publisher takes them.
with picked as materialized (
    select id from tenure.outbox
    where published_at is null and publish_at <= clock_timestamp() and queue = any (:queues::text[])
    order by publish_at, id
    limit :limit::bigint
    for update skip locked
)
update tenure.outbox
set publish_at = clock_timestamp() + :hold_s::double precision * interval '1 second', tries = tries + 1
from picked
where outbox.id = picked.id
returning outbox.id, outbox.job_id, outbox.queue
