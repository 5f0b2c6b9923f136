-- What became of these jobs that are not live any more? (A finished row never changes, so this answer cannot age.)
select id, contract, version, state, claims, lease_token, finished_at
from tenure.job_done
where id = any (:ids::bigint[])
