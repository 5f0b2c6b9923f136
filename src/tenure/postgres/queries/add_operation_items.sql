-- Add what a page of the search has found to a preview, and its summary. A repeat of the page adds nothing.
with operation as materialized (
    select id from tenure.operation
    where id = :id::bigint and state = 'preview' and not collected and cursor is not distinct from :before::text
    for update
),
added as (
    insert into tenure.operation_item (operation_id, item_id, seen)
    select operation.id, item.id, item.seen
    from operation cross join unnest(:ids::bigint[], :seen::text[]) as item (id, seen)
    on conflict (operation_id, item_id) do nothing
    returning item_id
)
update tenure.operation
set total = total + (select count(*) from added), cursor = :cursor::text, collected = :cursor::text is null,
    summary = :summary::jsonb
from operation as locked
where operation.id = locked.id
returning operation.total
