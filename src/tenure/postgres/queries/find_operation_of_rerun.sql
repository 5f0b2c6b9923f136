-- Find the operation that made this job of another one or of its dead letter, among the newest 1,000.
select id from (select id from tenure.operation where verb = 'requeue' order by id desc limit 1000) as newest
where exists (
    select from tenure.operation_item
    where operation_id = newest.id and item_id = any (array[:job::bigint, :letter::bigint]) and made = :made::bigint
)
order by id desc
limit 1
