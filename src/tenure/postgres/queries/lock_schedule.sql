-- Lock a schedule by its name and return it with the time under the lock.
with locked as materialized (
    select id, application, name, tenant_id, in_code, declaration, fingerprint, earlier, declared_by, declared_at, fire_at, next_at,
       last_job_id, paused_at, paused_by, pause_reason, withdrawn_at
    from tenure.schedule
    where application = :application::text and name = :name::text
    for update
)
select locked.*, clock_timestamp() as now from locked
