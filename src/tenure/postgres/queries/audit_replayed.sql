-- Read the effects of this job in order: claim, result, whether to be undone.
select node, claims, at, result::text, compensable from tenure.effect where job_id = :id::bigint order by at, node
