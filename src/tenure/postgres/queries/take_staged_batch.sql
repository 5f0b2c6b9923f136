-- Take a batch that this attempt has staged: a scope gets it, or its rows are copied and nobody reads it any more.
update tenure.dataset_batch
set state = :state::text, unread_since = case when :state::text = 'unread' then clock_timestamp() end
where id = :id::bigint and generation_id = :generation_id::bigint and job_id = :job_id::bigint
  and claims = :claims::integer and state = 'staged'
returning rows
