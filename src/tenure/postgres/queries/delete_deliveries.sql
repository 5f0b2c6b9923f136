-- Delete events of a generation that wait for a subscription, without routing them.
delete from tenure.dataset_delivery
where subscription_id = :id::bigint and generation_id = :generation_id::bigint and event_id = any (array(
    select event_id from tenure.dataset_delivery
    where subscription_id = :id::bigint and generation_id = :generation_id::bigint
    order by event_id
    limit :limit::bigint))
returning event_id
