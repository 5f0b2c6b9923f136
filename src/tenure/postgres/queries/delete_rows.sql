-- Delete rows of a batch that nobody reads.
delete from tenure.dataset_row
where batch_id = :id::bigint and key = any (array(
    select key from tenure.dataset_row where batch_id = :id::bigint order by key limit :limit::bigint))
returning key
