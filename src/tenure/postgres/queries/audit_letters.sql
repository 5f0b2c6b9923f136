-- The dead letters of the jobs of one page.
select letter.job_id, letter.id, letter.contract, letter.counter, letter.claims, letter.status, letter.requeued_as,
       letter.discard_asked_key, letter.discard_approved_by,
       letter.requeued_as is null or coalesce(
           (select origin_letter from tenure.job where job.id = letter.requeued_as),
           (select origin_letter from tenure.job_done where job_done.id = letter.requeued_as),
           letter.id) = letter.id as linked
from tenure.dead_letter as letter
where letter.job_id >= :low::bigint and letter.job_id <= :high::bigint
order by letter.job_id
