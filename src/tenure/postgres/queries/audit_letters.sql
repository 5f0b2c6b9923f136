-- The dead letters of the jobs in these spans of ids, and whether a job that runs one again points back to it. Letters outlive
-- the ranges of their jobs: what has left, or is leaving, is not looked for.
select letter.job_id, letter.id, letter.contract, letter.counter, letter.claims, letter.status, letter.requeued_as,
       letter.discard_asked_key, letter.discard_approved_by,
       letter.requeued_as is null
       or exists (select from tenure.job where job.id = letter.requeued_as and job.origin_letter = letter.id)
       or exists (select from tenure.job_done where job_done.id = letter.requeued_as and job_done.origin_letter = letter.id)
       or letter.requeued_as < (select max(high) from tenure.range) and not exists (
           select from tenure.range as its
           where letter.requeued_as >= its.low and letter.requeued_as < its.high and its.leaving is null) as linked
from unnest(:lows::bigint[], :highs::bigint[]) as span (low, high)
join tenure.range on range.leaving is null and range.low <= span.high and range.high > span.low
cross join lateral (
    select * from tenure.dead_letter
    where job_id > span.low and job_id <= span.high and job_id >= range.low and job_id < range.high
    offset 0
) as letter
order by letter.job_id
