-- Schedules: jobs that are made at fixed times.
--
--   schedule        what is declared, by code or at run time, and which fire time is next
--   schedule_fire   what happened at each fire time: the job, or why there is none
--   worker          says which schedules the code of each live worker declares

-- Whoever fires, pauses or changes a schedule locks its row. `next_at` alone decides when it is fired.
create table tenure.schedule (
    id             bigint generated always as identity primary key,
    fire_at        timestamptz, -- the first fire time that is not decided yet; NULL: there is none
    next_at        timestamptz, -- when it is due: fire_at and its jitter
    created_at     timestamptz not null default clock_timestamp(),
    updated_at     timestamptz not null default clock_timestamp(),
    declared_at    timestamptz not null default clock_timestamp(), -- when a process last declared it
    paused_at      timestamptz,
    withdrawn_at   timestamptz, -- since then no live worker's code declares it
    last_job_id    bigint, -- the job of its last fire that made one
    in_code        boolean not null, -- declared by code; false: made at run time
    application    text not null,
    name           text not null,
    tenant_id      text not null, -- of its jobs
    fingerprint    text not null, -- a hash of the declaration
    earlier        text[] not null default '{}', -- the fingerprints of earlier declarations, oldest first
    declared_by    text, -- the worker, process or person
    paused_by      text,
    pause_reason   text,
    declaration    jsonb not null, -- cron or every_seconds, tz, jitter_seconds, missed, overlap, job
    unique (application, name),
    check ((fire_at is null) = (next_at is null)),
    check ((paused_at is null) = (paused_by is null) and (paused_at is not null or pause_reason is null))
) with (fillfactor = 70);
-- What upkeep reads: the next due time is the first entry.
create index schedule_next on tenure.schedule (next_at, id) where paused_at is null and withdrawn_at is null;

-- One row for each fire time, and so one job: the primary key is the last guard behind the lock on the schedule.
create table tenure.schedule_fire (
    schedule_id bigint not null references tenure.schedule (id) on delete cascade,
    fire_at     timestamptz not null, -- without jitter; of a fire by hand the moment
    last_at     timestamptz not null, -- the last of `times` fire times that this row stands for
    at          timestamptz not null, -- when it was decided
    job_id      bigint,
    times       integer not null default 1, -- of missed times, a lower bound from 1,000 on
    by_hand     boolean not null default false,
    result      text not null check (result in ('enqueued', 'skipped', 'failed')),
    reason      text, -- why there is no job; of a fire by hand, who asked for it
    primary key (schedule_id, fire_at),
    check ((job_id is not null) = (result = 'enqueued'))
);
create index schedule_fire_at on tenure.schedule_fire (at);

alter table tenure.worker add column schedules jsonb; -- name -> fingerprint, as its code declares them; NULL: not known

-- A view keeps the columns that its table had when it was made.
create or replace view tenure.live_worker with (security_invoker = true) as
select * from tenure.worker
where last_seen_at > clock_timestamp() - interval '2 minutes'
   or name in (select lease_owner from tenure.job
               where role in ('leased', 'active') and lease_expires_at >= clock_timestamp());

do $$
begin
    -- A database with separate roles: its app goes on without `tenure migrate --grants`.
    if exists (select from pg_namespace where nspname = 'tenure' and nspowner = to_regrole('tenure_owner')) then
        grant insert, update, delete on tenure.schedule, tenure.schedule_fire to tenure_app;
    end if;
end
$$;
