-- Find the jobs of dead letters that match, newest first, below an id.
--
-- The letters of a cause are found by its fingerprint, if there are at most :scan; otherwise letters are walked by their jobs'
-- ids over at most :scan rows. The answer repeats how many letters were looked at and the lowest job's id among them.
with few as materialized (
    select letter_id from tenure.dead_letter_cause where fingerprint = :group::text limit :scan::bigint + 1
),
looked as materialized (
    (select letter.id, job_id, contract, tenant_id, type, queue, reason_code
     from few
     -- `offset 0`: each is read by its id, whatever the planner thinks of the other conditions.
     cross join lateral (select * from tenure.dead_letter where id = few.letter_id offset 0) as letter
     where :group::text is not null and (select count(*) from few) <= :scan::bigint and job_id < :after::bigint)
    union all
    (select id, job_id, contract, tenant_id, type, queue, reason_code from tenure.dead_letter
     where (:group::text is null or (select count(*) from few) > :scan::bigint) and job_id < :after::bigint
     order by job_id desc
     limit :scan::bigint)
),
scanned as materialized (
    select count(*) as rows, min(job_id) as lowest from looked
),
page as materialized (
    select job_id from looked
    where contract = coalesce(:contract::text, contract) and tenant_id = coalesce(:tenant::text, tenant_id)
      and type = coalesce(:type::text, type) and queue = coalesce(:queue::text, queue)
      and reason_code = coalesce(:reason::text, reason_code)
      and (:group::text is null or exists (
          select from tenure.dead_letter_cause as cause
          where cause.letter_id = looked.id and cause.fingerprint = :group::text
          offset 0 -- so that it is looked up for each letter, and not made of all causes
      ))
    order by job_id desc
    limit :limit::bigint
)
select scanned.rows, scanned.lowest, page.job_id
from scanned left join page on true
order by page.job_id desc
