-- Record how the last round for a subscription went; after a failure it is tried again later and later.
update tenure.dataset_subscription
set last_error = :error::text,
    failures = case when :error::text is null then 0 else failures + 1 end,
    retry_at = case when :error::text is not null
        then clock_timestamp() + least(power(2, least(failures, 10)), 300) * interval '1 second' end
where id = :id::bigint
