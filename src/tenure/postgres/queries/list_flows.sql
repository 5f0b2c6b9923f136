-- List flows, the newest first: one of them, or a page of those that fit.
select id, name, tenant_id, state, on_failure, nodes, open, failed, created_at, ended_at, created_by
from tenure.flow
where (:id::bigint is null or id = :id::bigint) and (:after::bigint is null or id < :after::bigint)
  and (:state::text is null or state = :state::text) and (:name::text is null or name = :name::text)
  and (:tenant::text is null or tenant_id = :tenant::text)
order by id desc
limit :limit::bigint
