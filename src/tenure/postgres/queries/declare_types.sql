-- These job types want these numbers; what was declared of them before is replaced.
insert into tenure.job_type (
    contract, type, lease_ttl_sec, heartbeat_sec, sla_sec, renews, max_attempts, backoff_base_ms, backoff_cap_ms, on_exhausted)
select * from unnest(
    :contracts::text[], :types::text[], :leases::double precision[], :heartbeats::double precision[],
    :slas::double precision[], :renewals::boolean[], :limits::integer[], :bases::bigint[], :caps::bigint[], :ends::text[])
order by 1, 2
on conflict (contract, type) do update
set lease_ttl_sec = excluded.lease_ttl_sec, heartbeat_sec = excluded.heartbeat_sec, sla_sec = excluded.sla_sec,
    renews = excluded.renews, max_attempts = excluded.max_attempts, backoff_base_ms = excluded.backoff_base_ms,
    backoff_cap_ms = excluded.backoff_cap_ms, on_exhausted = excluded.on_exhausted, updated_at = clock_timestamp()
where (job_type.lease_ttl_sec, job_type.heartbeat_sec, job_type.sla_sec, job_type.renews, job_type.max_attempts,
       job_type.backoff_base_ms, job_type.backoff_cap_ms, job_type.on_exhausted)
    is distinct from (excluded.lease_ttl_sec, excluded.heartbeat_sec, excluded.sla_sec, excluded.renews,
                      excluded.max_attempts, excluded.backoff_base_ms, excluded.backoff_cap_ms, excluded.on_exhausted)
returning contract, type
