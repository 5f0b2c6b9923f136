-- Which jobs match, live or finished? Newest first, from a place in the list on.
--
-- Ids are walked downwards, and no further than so many rows of each table: what matches little must not read all of
-- history. Above the floor nothing was left out; it is 0 where the end was reached. Both answers are of one moment.
-- Ids and times of making rise together, but not strictly (clocks are set, transactions overlap): an age is compared on
-- every row that is looked at, and ends no walk. Only who asks for one pays for it.
with floor as materialized (
    select greatest(
        0,
        (select id from tenure.job where :live::boolean and id < :after::bigint
         order by id desc offset :scan::bigint limit 1),
        (select id from tenure.job_done where :done::boolean and id < :after::bigint
         order by id desc offset :scan::bigint limit 1)
    ) as id
),
page as materialized (
    (select id, contract, state, role, queue, type, tenant_id, priority, claims, counter, max_attempts, due_at, created_at,
            updated_at, finished_at, lease_owner, lease_expires_at, last_error
     from tenure.job
     where :live::boolean and id < :after::bigint and id > (select floor.id from floor)
       and state = coalesce(:state::text, state) and type = coalesce(:type::text, type)
       and queue = coalesce(:queue::text, queue) and tenant_id = coalesce(:tenant::text, tenant_id)
       and contract = coalesce(:contract::text, contract)
       --aged: and created_at <= coalesce(statement_timestamp() - :older_ms::bigint * interval '1 ms', 'infinity')
       --aged: and created_at >= coalesce(statement_timestamp() - :younger_ms::bigint * interval '1 ms', '-infinity')
     order by id desc
     limit :limit::bigint)
    union all
    (select id, contract, state, role, queue, type, tenant_id, priority, claims, counter, max_attempts, due_at, created_at,
            updated_at, finished_at, lease_owner, lease_expires_at, last_error
     from tenure.job_done
     where :done::boolean and id < :after::bigint and id > (select floor.id from floor)
       and state = coalesce(:state::text, state) and type = coalesce(:type::text, type)
       and queue = coalesce(:queue::text, queue) and tenant_id = coalesce(:tenant::text, tenant_id)
       and contract = coalesce(:contract::text, contract)
       --aged: and created_at <= coalesce(statement_timestamp() - :older_ms::bigint * interval '1 ms', 'infinity')
       --aged: and created_at >= coalesce(statement_timestamp() - :younger_ms::bigint * interval '1 ms', '-infinity')
     order by id desc
     limit :limit::bigint)
)
select floor.id, page.id, contract, state, role, queue, type, tenant_id, priority, claims, counter, max_attempts, due_at,
       created_at, updated_at, finished_at, lease_owner, lease_expires_at,
       case when last_error is not null then jsonb_build_object(
           'type', last_error -> 'type', 'code', last_error -> 'code', 'message', left(last_error ->> 'message', 300)
       )::text end
from floor left join page on true
order by page.id desc
limit :limit::bigint
