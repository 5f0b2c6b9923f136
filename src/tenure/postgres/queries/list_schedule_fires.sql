-- List the last fires of a schedule, newest first.
select fire_at, last_at, at, times, job_id, by_hand, result, reason
from tenure.schedule_fire
where schedule_id = :id::bigint
order by fire_at desc
limit :limit::bigint
