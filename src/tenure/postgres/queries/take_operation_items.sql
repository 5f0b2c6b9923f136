-- Take items of an operation that nobody works on, behind an id.
select item_id, seen from tenure.operation_item
where operation_id = :id::bigint and item_id > :after::bigint and state = 'waiting'
order by item_id
limit :limit::bigint
for update skip locked
