-- Lock waiting jobs that are due to be made ready. Skips locked rows: another process promotes or cancels them.
select id
from tenure.job
where contract = :contract::text and version = :version::text and role = 'waiting' and due_at <= clock_timestamp()
  and state = any (:promoted::text[]) -- in other states a person decides, whatever the time
  and (:units::bigint[] is null or id / 1048576 = any (:units::bigint[]))
  and (:ids::bigint[] is null or id = any (:ids::bigint[]))
order by due_at, id
limit :limit::bigint
for update skip locked
