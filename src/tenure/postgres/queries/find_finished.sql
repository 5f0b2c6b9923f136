-- Find finished jobs of a few id ranges that match, newest first: as find_live.sql, within two bounds.
-- Rendered from templates/find.template by `python -m tests.postgres.render`: change the template.
with scanned as materialized (
    select count(*) as rows, min(id) as lowest
    from (select id from tenure.job_done where id >= :low::bigint and id < :after::bigint order by id desc limit :scan::bigint) as each
),
page as materialized (
    select id, contract, state, role, queue, type, tenant_id, priority, claims, counter, max_attempts, due_at, created_at,
           updated_at, finished_at, lease_owner, lease_expires_at, last_error, started_at
    from tenure.job_done
    where id >= :low::bigint and id < :after::bigint and id >= (select lowest from scanned)
      and state = coalesce(:state::text, state) and type = coalesce(:type::text, type)
      and queue = coalesce(:queue::text, queue) and tenant_id = coalesce(:tenant::text, tenant_id)
      and contract = coalesce(:contract::text, contract)
      and created_at <= coalesce(statement_timestamp() - :older_ms::bigint * interval '1 ms', 'infinity')
      and created_at >= coalesce(statement_timestamp() - :younger_ms::bigint * interval '1 ms', '-infinity')
      and (:worker::text is null or exists (
          select from tenure.event
          where event.job_id = job_done.id and event.job_id >= :low::bigint and event.job_id < :after::bigint
            and trigger in ('claim', 'reclaim') and actor = :worker::text
      ))
      and (:longer_ms::bigint is null and :shorter_ms::bigint is null or (
          role in ('leased', 'active', 'settling', 'done') and coalesce(finished_at, statement_timestamp()) - started_at between
              coalesce(:longer_ms::bigint * interval '1 ms', '0') and coalesce(:shorter_ms::bigint * interval '1 ms', '100 years')
      ))
      and (:error::text is null or strpos(lower(concat_ws(
          ' ', last_error ->> 'type', last_error ->> 'code', last_error ->> 'message')), lower(:error::text)) > 0)
      and (:payload_paths::text[] is null or not exists (
          select from unnest(:payload_paths::text[], :payload_values::text[]) as wanted (path, value)
          where payload #>> wanted.path::text[] is distinct from wanted.value
      ))
    order by id desc
    limit :limit::bigint
)
select scanned.rows, scanned.lowest, page.id, contract, state, role, queue, type, tenant_id, priority, claims, counter,
       max_attempts, due_at, created_at, updated_at, finished_at, lease_owner, lease_expires_at,
       case when last_error is not null then jsonb_build_object(
           'type', last_error -> 'type', 'code', last_error -> 'code', 'message', left(last_error ->> 'message', 300)
       )::text end,
       case when role in ('leased', 'active', 'settling', 'done')
            then extract(epoch from coalesce(finished_at, statement_timestamp()) - started_at)::double precision end as ran_s
from scanned left join page on true
order by page.id desc
limit :limit::bigint
