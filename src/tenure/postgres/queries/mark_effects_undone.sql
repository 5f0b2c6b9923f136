-- Mark all effects of this job as undone.
update tenure.effect
set compensated_at = clock_timestamp()
where job_id = :id::bigint and compensable and compensated_at is null
