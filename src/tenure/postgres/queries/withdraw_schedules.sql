-- Withdraw an application's schedules that none of its live workers declares, nor the caller (:keep); return their names.
--
-- Only schedules in code, and not those that were declared in the last 30 seconds: their worker may not have written its
-- row in tenure.worker yet. The row stays, with its history and its pause. Rows are locked in the order of their ids; one
-- that was declared again while this statement waited for it is seen as it is then, and stays.
with unused as materialized (
    select id from tenure.schedule
    where application = :application::text and in_code and withdrawn_at is null
      and declared_at < clock_timestamp() - interval '30 seconds'
      and not coalesce(:keep::jsonb ? name, false)
      and not exists (select from tenure.live_worker
                      where application = :application::text and schedules ? schedule.name)
    order by id
    for update
)
update tenure.schedule
set withdrawn_at = clock_timestamp(), updated_at = clock_timestamp()
where id in (select id from unused)
returning name
