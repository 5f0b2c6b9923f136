-- List items of an operation by their ids.
select item_id, state, code, why, made
from tenure.operation_item
where operation_id = :id::bigint and item_id > :after::bigint and state = coalesce(:state::text, state)
order by item_id
limit :limit::bigint
