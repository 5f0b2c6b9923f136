-- Count the dead letters of a tenant and contract that were written lately and are still open, up to a bound.
select count(*)
from (
    select from (
        select created_at from tenure.dead_letter
        where status = 'open' and contract = :contract::text and tenant_id = :tenant::text
        order by id desc
        limit :bound::bigint
    ) as newest
    where created_at >= date_trunc('minute', clock_timestamp() - :window_s::double precision * interval '1 second')
) as lately
