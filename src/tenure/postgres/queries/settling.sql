-- Which jobs stand between their first and second transaction? Skip locked rows: another process settles them.
select id
from tenure.job
where contract = :contract::text and version = :version::text and role in ('leased', 'active', 'settling') and role = 'settling'
  and (:ids::bigint[] is null or id = any (:ids::bigint[]))
order by id
limit :limit::bigint
for update skip locked
