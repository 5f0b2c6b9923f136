-- List schedules with their last fire: all, or those of an application, a tenant or a name.
select schedule.id, application, name, tenant_id, in_code, declaration, fingerprint, earlier, declared_by, declared_at,
       schedule.fire_at, next_at, last_job_id, paused_at, paused_by, pause_reason, withdrawn_at, clock_timestamp() as now,
       last.fire_at, last.last_at, last.at, last.times, last.job_id, last.by_hand, last.result, last.reason
from tenure.schedule left join lateral (
    select * from tenure.schedule_fire where schedule_id = schedule.id order by schedule_fire.fire_at desc limit 1
) as last on true
where (:application::text is null or application = :application::text)
  and (:name::text is null or name = :name::text)
  and (:tenant_id::text is null or tenant_id = :tenant_id::text)
order by application, name
limit :limit::bigint
