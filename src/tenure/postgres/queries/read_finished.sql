-- Read how these jobs ended that are no longer live. A finished row never changes, so this answer stays true.
select id, contract, version, state, claims, lease_token, finished_at
from tenure.job_done
where id = any (:ids::bigint[])
