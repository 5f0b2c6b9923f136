-- Delete idempotency keys that are older than :keep_sec and whose job's id range was dropped.
with gap as materialized (
    select coalesce(lag(high) over (order by low), -9223372036854775808) as low, low as high from tenure.range
)
delete from tenure.key
where (tenant_id, key) in (
    select old.tenant_id, old.key
    from gap cross join lateral (
        select tenant_id, key
        from tenure.key
        where job_id >= gap.low and job_id < gap.high
          and created_at < clock_timestamp() - :keep_sec::double precision * interval '1 second'
        order by job_id
        limit :limit::bigint
        for update skip locked
    ) as old
    where gap.low < gap.high
    limit :limit::bigint
)
returning key
