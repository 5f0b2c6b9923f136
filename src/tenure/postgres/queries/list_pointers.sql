-- List the pointers of a generation, by scope.
select scope, location, cursor, row_count, job_id, at
from tenure.dataset_scope
where generation_id = :id::bigint and location is not null and (:after::text is null or scope > :after::text)
order by scope
limit :limit::bigint
