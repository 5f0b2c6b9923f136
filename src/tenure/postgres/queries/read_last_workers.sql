-- Read which worker claimed each of these jobs last.
select distinct on (job_id) job_id, actor
from tenure.event
where job_id = any (:ids::bigint[]) and trigger in ('claim', 'reclaim')
order by job_id, seq desc
