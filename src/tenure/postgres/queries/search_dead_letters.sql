-- Find dead letters that match, newest first, below an id.
--
-- Ids are walked downwards over at most :scan rows, along the index that fits best: of one cause, of the open ones of one
-- tenant, of the open ones, of all. The walk ends when the page is full. The answer of a page that is not full repeats how
-- many rows were looked at and the lowest id among them. Documents are read of those on the page only, and only if wanted:
-- else no payloads, and errors in short.
with looked as not materialized (
    select id
    from (
        (select letter_id as id from tenure.dead_letter_cause
         where :group::text is not null and fingerprint = :group::text and letter_id < :after::bigint
         order by letter_id desc
         limit :scan::bigint)
        union all
        (select id from tenure.dead_letter
         where status = 'open' and contract = :contract::text and tenant_id = :tenant::text
           and :group::text is null and :status::text = 'open' and id < :after::bigint
           -- Said, so that a plan for any values does not walk all open letters to find that none has a contract of NULL.
           and :contract::text is not null and :tenant::text is not null
         order by id desc
         limit :scan::bigint)
        union all
        (select id from tenure.dead_letter
         where status = 'open' and :group::text is null and :status::text = 'open'
           and (:contract::text is null or :tenant::text is null) and id < :after::bigint
         order by id desc
         limit :scan::bigint)
        union all
        (select id from tenure.dead_letter
         where :group::text is null and :status::text is distinct from 'open' and id < :after::bigint
         order by id desc
         limit :scan::bigint)
    ) as walk
    order by id desc
    limit :scan::bigint
),
page as materialized (
    select looked.id
    from looked
    -- The offset keeps the planner from reading all dead letters instead of looking up each of these.
    cross join lateral (select * from tenure.dead_letter where dead_letter.id = looked.id offset 0) as letter
    where status = coalesce(:status::text, status) and contract = coalesce(:contract::text, contract)
      and tenant_id = coalesce(:tenant::text, tenant_id) and type = coalesce(:type::text, type)
      and queue = coalesce(:queue::text, queue) and reason_code = coalesce(:reason::text, reason_code)
      and (:release::text is null or coalesce(nullif(last_error ->> 'release', ''), 'unknown') = :release::text)
      and (:worker::text is null or last_owner = :worker::text)
      and created_at <= coalesce(statement_timestamp() - :older_ms::bigint * interval '1 ms', 'infinity')
      and created_at >= coalesce(statement_timestamp() - :younger_ms::bigint * interval '1 ms', '-infinity')
      and (:error::text is null or strpos(lower(concat_ws(
          ' ', last_error ->> 'type', last_error ->> 'code', last_error ->> 'message')), lower(:error::text)) > 0)
      and (:payload_paths::text[] is null or not exists (
          select from unnest(:payload_paths::text[], :payload_values::text[]) as wanted (path, value)
          where payload #>> wanted.path::text[] is distinct from wanted.value
      ))
    order by looked.id desc
    limit :limit::bigint
),
scanned as materialized (
    select count(*) as rows, min(id) as lowest from looked where (select count(*) from page) < :limit::bigint
)
select scanned.rows, scanned.lowest, letter.id, job_id, contract, tenant_id, type, reason_code, stage,
       case when :with_documents::boolean then last_error::text else jsonb_build_object(
           'type', last_error -> 'type', 'code', last_error -> 'code', 'message', left(last_error ->> 'message', 300)
       )::text end, counter, claims, last_owner,
       last_lease_expires_at, correlation_id, trace_id, case when :with_documents::boolean then payload::text end, status,
       failed_at, created_at, updated_at, requeued_as, requeued_by, discard_reason, discard_asked_by, discard_asked_at,
       discard_approved_by, discard_approved_at
from scanned
left join page on true
left join lateral (select * from tenure.dead_letter where dead_letter.id = page.id offset 0) as letter on true
-- An expression without an index: for `id desc` the planner would read all dead letters, to avoid sorting this page.
order by -page.id
