-- List the effects of this job with their results, newest first.
select node, result::text, at from tenure.effect where job_id = :id::bigint order by at desc, node
