-- List dead letters, newest first, below an id.
--
-- Each kind of filter has an index in the order of the list, whatever the planner knows: the open ones of one tenant, the
-- open ones, all of them. Only one of the three is read, and no further than the page is long.
with page as materialized (
    (select id from tenure.dead_letter
     where status = 'open' and contract = :contract::text and tenant_id = :tenant::text
       and :status::text = 'open' and id < coalesce(:after::bigint, 9223372036854775807)
     order by id desc
     limit :limit::bigint)
    union all
    (select id from tenure.dead_letter
     where status = 'open' and contract = coalesce(:contract::text, contract)
       and tenant_id = coalesce(:tenant::text, tenant_id)
       and :status::text = 'open' and (:contract::text is null or :tenant::text is null)
       and id < coalesce(:after::bigint, 9223372036854775807)
     order by id desc
     limit :limit::bigint)
    union all
    (select id from tenure.dead_letter
     where status = coalesce(:status::text, status) and contract = coalesce(:contract::text, contract)
       and tenant_id = coalesce(:tenant::text, tenant_id)
       and :status::text is distinct from 'open' and id < coalesce(:after::bigint, 9223372036854775807)
     order by id desc
     limit :limit::bigint)
)
select letter.id, job_id, contract, tenant_id, type, reason_code, stage, last_error::text, counter, claims, last_owner,
       last_lease_expires_at, correlation_id, trace_id, payload::text, status, failed_at, created_at, updated_at,
       requeued_as, requeued_by, discard_reason, discard_asked_by, discard_asked_at, discard_approved_by,
       discard_approved_at
from page join tenure.dead_letter as letter on letter.id = page.id
-- An expression without an index: for `id desc` the planner would read all dead letters, to avoid sorting this page.
order by -page.id
