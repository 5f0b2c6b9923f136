-- Lock a schedule that is due and return it with the time under the lock; no row if another process fires it now.
with locked as materialized (
    select id, application, name, tenant_id, in_code, declaration, fingerprint, earlier, declared_by, declared_at, fire_at, next_at,
       last_job_id, paused_at, paused_by, pause_reason, withdrawn_at
    from tenure.schedule
    where id = :id::bigint and paused_at is null and withdrawn_at is null and next_at <= clock_timestamp()
    for update skip locked
)
select locked.*, clock_timestamp() as now from locked
