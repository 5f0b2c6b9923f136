-- Count rows that are being added to a batch that this attempt has staged; returns how many it had. Locks the batch.
update tenure.dataset_batch
set rows = rows + :added::bigint
where id = :id::bigint and generation_id = :generation_id::bigint and job_id = :job_id::bigint
  and claims = :claims::integer and state = 'staged'
returning rows - :added::bigint
