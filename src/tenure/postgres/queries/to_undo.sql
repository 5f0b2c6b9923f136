-- Which effects of these jobs are to be undone (or, of a repeat, were), newest first?
select job_id, array_agg(node order by at desc, node)
from tenure.effect
where job_id = any (:ids::bigint[]) and compensable and (compensated_at is null or :all::boolean)
group by job_id
