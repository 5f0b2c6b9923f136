-- Delete a batch that has no rows any more.
delete from tenure.dataset_batch where id = :id::bigint
