-- The next jobs by id, live or finished, with what their logs and letters must agree with.
select id, contract, version, state, role, claims, raises, counter, max_attempts, seq, updated_at,
       lease_token is not null and lease_expires_at is not null and lease_owner is not null as leased,
       due_at is not null as has_due, role = 'done' as done, origin_letter, claim_known, live
from (
    (select job.*, true as live,
            role not in ('leased', 'active') or exists (select from tenure.claim where claim.key = job.lease_token)
                as claim_known
     from tenure.job
     where job.id > :after::bigint and (:since::timestamptz is null or job.updated_at >= :since::timestamptz)
     order by job.id limit :limit::bigint)
    union all
    (select job_done.*, false, true
     from tenure.job_done
     where job_done.id > :after::bigint and (:since::timestamptz is null or job_done.updated_at >= :since::timestamptz)
     order by job_done.id limit :limit::bigint)
) as page
order by id
limit :limit::bigint
