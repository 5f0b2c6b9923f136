-- Lock jobs that stand between their first and second transaction. Skips locked rows: another process settles them.
select id
from tenure.job
where contract = :contract::text and version = :version::text and role in ('leased', 'active', 'settling') and role = 'settling'
  and (:sources::text[] is null or state = any (:sources::text[]))
  and (:ids::bigint[] is null or id = any (:ids::bigint[])) and (:tried::bigint[] is null or id <> all (:tried::bigint[]))
limit :limit::bigint
for update skip locked
