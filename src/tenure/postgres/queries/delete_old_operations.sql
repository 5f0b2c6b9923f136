-- Delete operations that ended long ago and previews that nobody started, or of these only one; with a part of their items.
with old as materialized (
    select id from tenure.operation
    where id = coalesce(:id::bigint, id)
      and (ended_at < clock_timestamp() - :keep_sec::double precision * interval '1 second'
           or state = 'preview' and created_at < clock_timestamp() - interval '1 day')
    order by id
    limit 10
    for update skip locked
),
items as (
    delete from tenure.operation_item
    where (operation_id, item_id) in (
        select operation_id, item_id from tenure.operation_item where operation_id in (select id from old) limit :limit::bigint)
    returning operation_id
),
batches as (
    delete from tenure.operation_batch where operation_id in (select id from old)
),
gone as (
    delete from tenure.operation
    where id in (select id from old) and (select count(*) from items) < :limit::bigint
)
select count(*) + (select count(*) from items) from old
