-- List schedules that are due, in the order of their due times, after a given one.
select id, next_at
from tenure.schedule
where paused_at is null and withdrawn_at is null
  and next_at <= (select clock_timestamp()) and (next_at, id) > (:after_at::timestamptz, :after_id::bigint)
order by next_at, id
limit :limit::bigint
