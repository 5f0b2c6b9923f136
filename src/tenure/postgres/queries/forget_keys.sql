-- Which idempotency keys are old, and older than the last trace of their jobs?
delete from tenure.key
where (tenant_id, key) in (
    select tenant_id, key
    from tenure.key
    where created_at < clock_timestamp() - :keep_sec::double precision * interval '1 second'
      and not exists (select from tenure.range where key.job_id >= range.low and key.job_id < range.high)
    order by created_at
    limit :limit::bigint
    for update skip locked
)
returning key
