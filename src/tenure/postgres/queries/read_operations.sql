-- Read operations, newest first, with the sums of what their batches did.
with page as materialized (
    select * from tenure.operation
    where id = coalesce(:id::bigint, id) and id < :after::bigint
      and (:tenant::text is null or tenant_id = :tenant::text)
    order by id desc
    limit :limit::bigint
)
select page.id, of_letters, verb, query, options::text, tenant_id, state, collected, cursor, total, per_second, created_at,
       created_by, started_at, started_by, ended_at, aborted_by, coalesce(batches.done, 0)::bigint, batches.skipped::text,
       summary::text
from page
left join lateral (
    select sum(done) as done, (
        select jsonb_object_agg(code, number) from (
            select code, sum(number::bigint) as number
            from tenure.operation_batch cross join lateral jsonb_each_text(skipped) as each (code, number)
            where operation_id = page.id
            group by code
        ) as by_code
    ) as skipped
    from tenure.operation_batch where operation_id = page.id
) as batches on true
order by page.id desc
