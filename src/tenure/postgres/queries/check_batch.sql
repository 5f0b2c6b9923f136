-- Tell whether a batch of rows is, or was, one of a scope of this generation: a cursor may name any batch.
select id from tenure.dataset_batch
where id = :id::bigint and generation_id = :generation_id::bigint and state <> 'staged'
