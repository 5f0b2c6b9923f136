-- Which idempotency keys are old, and older than the last trace of their jobs?
delete from tenure.key
where (tenant_id, key) in (
    select tenant_id, key
    from tenure.key
    where job_id < (select min(low) from tenure.range)
      and created_at < clock_timestamp() - :keep_sec::double precision * interval '1 second'
    order by job_id
    limit :limit::bigint
    for update skip locked
)
returning key
