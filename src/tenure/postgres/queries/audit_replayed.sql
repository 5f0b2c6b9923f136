-- Which effects did this job have, in order: under which claim, with what result, to be undone or not?
select node, claims, at, result::text, compensable from tenure.effect where job_id = :id::bigint order by at, node
