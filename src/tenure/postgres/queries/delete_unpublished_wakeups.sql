-- Delete wake-ups that nobody will publish, because their queues are not published: one page.
-- Queues with pending wake-ups are found by one look into the index for each, however many wake-ups they have.
with recursive waiting (queue) as (
    (
        select queue from tenure.outbox
        where published_at is null
        order by queue
        limit 1
    )
    union all
    select (
        select outbox.queue from tenure.outbox
        where published_at is null and outbox.queue > waiting.queue
        order by outbox.queue
        limit 1
    )
    from waiting
    where waiting.queue is not null
), picked as materialized (
    select unwanted.id
    from waiting
    cross join lateral (
        select id from tenure.outbox
        where published_at is null and outbox.queue = waiting.queue
        order by publish_at, id
        limit :limit::bigint
        for update skip locked
    ) as unwanted
    where not exists (select from tenure.published_queue where published_queue.queue = waiting.queue)
    limit :limit::bigint
)
delete from tenure.outbox
where id = any (array(select id from picked))
returning id
