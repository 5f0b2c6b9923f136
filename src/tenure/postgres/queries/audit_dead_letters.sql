-- Read the dead letters of the jobs between :after and :before.
-- Dead letters outlive the id ranges of their jobs: where the range was dropped, or is being dropped, the job is not checked.
select letter.job_id, letter.id, letter.contract, letter.counter, letter.claims, letter.status, letter.requeued_as,
       letter.discard_asked_key, letter.discard_approved_by
from tenure.dead_letter as letter
where job_id > :after::bigint and job_id < :before::bigint and (:ids::bigint[] is null or job_id = any (:ids::bigint[]))
  and exists (select from tenure.range where leaving is null and job_id >= low and job_id < high)
order by letter.job_id
