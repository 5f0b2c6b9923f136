-- Lock a scope of a generation; returns the batch that it has.
select batch_id from tenure.dataset_scope
where generation_id = :generation_id::bigint and scope = :scope::text
for update
