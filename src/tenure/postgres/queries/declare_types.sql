-- Store the options of these job types in place of earlier ones.
-- The answer lists the types that were written, and those that were not, because a live worker of another application
-- declares them, with that application.
with declared as materialized (
    select * from jsonb_to_recordset(:types::jsonb) as g (
        contract text, type text, lease_ttl_sec double precision, heartbeat_sec double precision, sla_sec double precision,
        renews boolean, max_attempts integer, backoff_base_ms bigint, backoff_cap_ms bigint, on_exhausted text)
),
foreign_entry as materialized (
    select job_type.contract, job_type.type, job_type.application
    from declared join tenure.job_type using (contract, type)
    where job_type.application <> coalesce(:application::text, '')
      and (job_type.withdrawn_at is null or job_type.withdrawn_at < job_type.updated_at)
      and exists (select from tenure.live_worker
                  where application = job_type.application and declares -> job_type.contract ? job_type.type)
),
written as (
    insert into tenure.job_type as old (
        contract, type, lease_ttl_sec, heartbeat_sec, sla_sec, renews, max_attempts, backoff_base_ms, backoff_cap_ms,
        on_exhausted, application, declared_by)
    select declared.*, :application::text, :declared_by::text
    from declared
    where not exists (select from foreign_entry where foreign_entry.contract = declared.contract and foreign_entry.type = declared.type)
    order by 1, 2
    on conflict (contract, type) do update
    set lease_ttl_sec = excluded.lease_ttl_sec, heartbeat_sec = excluded.heartbeat_sec, sla_sec = excluded.sla_sec,
        renews = excluded.renews, max_attempts = excluded.max_attempts, backoff_base_ms = excluded.backoff_base_ms,
        backoff_cap_ms = excluded.backoff_cap_ms, on_exhausted = excluded.on_exhausted,
        application = excluded.application, declared_by = excluded.declared_by, withdrawn_at = null,
        updated_at = clock_timestamp()
    where (old.lease_ttl_sec, old.heartbeat_sec, old.sla_sec, old.renews, old.max_attempts, old.backoff_base_ms,
           old.backoff_cap_ms, old.on_exhausted, coalesce(excluded.application, old.application))
        is distinct from (excluded.lease_ttl_sec, excluded.heartbeat_sec, excluded.sla_sec, excluded.renews,
                          excluded.max_attempts, excluded.backoff_base_ms, excluded.backoff_cap_ms, excluded.on_exhausted,
                          old.application)
       or old.withdrawn_at >= old.updated_at
       -- A worker that starts with unchanged options: withdraw_types.sql must see that they were declared just now.
       or old.updated_at < clock_timestamp() - interval '10 seconds'
    returning contract, type
)
select contract, type, null::text as owner from written
union all
select contract, type, application from foreign_entry
