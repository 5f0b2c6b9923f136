-- List the scopes of a generation that have rows, by scope: a page of them, or one.
select scope, batch_id, row_count
from tenure.dataset_scope
where generation_id = :id::bigint and batch_id is not null and (:after::text is null or scope > :after::text)
  and (:scope::text is null or scope = :scope::text)
order by scope
limit :limit::bigint
