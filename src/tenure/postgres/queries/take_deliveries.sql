-- Take events of a generation that wait for a subscription, in their order.
with taken as (
    delete from tenure.dataset_delivery
    where subscription_id = :id::bigint and generation_id = :generation_id::bigint and event_id = any (array(
        select event_id from tenure.dataset_delivery
        where subscription_id = :id::bigint and generation_id = :generation_id::bigint
        order by event_id
        limit :limit::bigint))
    returning event_id
)
select event.id, event.input::text
from taken cross join lateral (
    select id, input from tenure.dataset_event where id = any (array[taken.event_id])
) as event
order by event.id
