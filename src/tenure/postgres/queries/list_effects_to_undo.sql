-- List the effects of these jobs that are to be undone (for a repeated call: that were undone too), newest first.
select job_id, array_agg(node order by at desc, node)
from tenure.effect
where job_id = any (:ids::bigint[]) and compensable and (compensated_at is null or :all::boolean)
group by job_id
