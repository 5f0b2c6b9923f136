-- Take wake-ups that are due, for some seconds: until then no other publisher takes them.
-- None of a paused queue, whose tasks no worker could claim: they are due when it is resumed.
-- One range of the index for each queue; the clock is a subselect, because a volatile function would bound no range.
with picked as materialized (
    select due.id
    from unnest(:queues::text[]) as wanted (queue)
    cross join lateral (
        select id from tenure.outbox
        where published_at is null and queue = wanted.queue and publish_at <= (select clock_timestamp())
        order by publish_at, id
        limit :limit::bigint
        for update skip locked
    ) as due
    where wanted.queue <> all (array(select name from tenure.queue where paused_at is not null))
    limit :limit::bigint
)
update tenure.outbox
set publish_at = clock_timestamp() + :hold_s::double precision * interval '1 second', tries = tries + 1
from picked
where outbox.id = any (array[picked.id])
returning outbox.id, outbox.job_id, outbox.queue
