-- Add what a page of the search has found to a preview. A repeat of the page adds nothing.
with operation as materialized (
    select id from tenure.operation where id = :id::bigint and state = 'preview' for update
),
added as (
    insert into tenure.operation_item (operation_id, item_id, seen)
    select operation.id, item.id, item.seen
    from operation cross join unnest(:ids::bigint[], :seen::text[]) as item (id, seen)
    on conflict (operation_id, item_id) do nothing
    returning item_id
)
update tenure.operation
set total = total + (select count(*) from added), cursor = :cursor::text, collected = :cursor::text is null
from operation as locked
where operation.id = locked.id
returning operation.total
