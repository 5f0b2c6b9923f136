-- Which nodes of this job have had their effect, and what came of each, newest first?
select node, result::text, at from tenure.effect where job_id = :id::bigint order by at desc, node
