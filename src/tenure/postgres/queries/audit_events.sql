-- The log of the jobs of one page, in order.
select job_id, seq, ts, hop, trigger, from_state, to_state, claims, counter, contract
from tenure.event
where job_id >= :low::bigint and job_id <= :high::bigint
  and (:ids::bigint[] is null or job_id = any (:ids::bigint[]))
order by job_id, seq
