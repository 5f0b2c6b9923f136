-- Forget published queues that no publisher has refreshed for this long, and their wake-ups that nobody will publish.
with gone as (
    delete from tenure.published_queue
    where seen_at < clock_timestamp() - :unseen_s::double precision * interval '1 second'
    returning queue
), dropped as (
    delete from tenure.outbox
    where published_at is null and queue in (select queue from gone)
)
select queue from gone
