-- Alarms: conditions that upkeep looks for, each a row from when it is first seen until it is over; and who was notified.
--
--   alarm         one row for each time that a condition held; it fires when the condition has held long enough
--   alarm_mute    who muted which alarms, until when and why
--   alarm_notice  what a sink (log, webhook, command) was sent of an alarm, or is still to be sent
--   alarm_round   when conditions were last looked for: any process of upkeep does it, one at a time

create table tenure.alarm (
    id         bigint generated always as identity primary key,
    since      timestamptz not null, -- the condition holds since
    seen_at    timestamptz not null, -- and was last seen
    fired_at   timestamptz,          -- NULL: it has not held for long enough
    cleared_at timestamptz,          -- NULL: it still holds
    hold_s     double precision not null, -- how long it must hold before the alarm fires
    value      double precision not null,
    threshold  double precision not null,
    kind       text collate "C" not null,
    tenant_id  text collate "C" not null, -- empty: not of one tenant
    subject    text collate "C" not null, -- what it is about: a queue, a type, a pid; empty: nothing in particular
    severity   text not null check (severity in ('P1', 'P2', 'P3')),
    summary    text not null,
    next       text not null, -- the next command
    details    jsonb not null default '{}'
) with (fillfactor = 70);
create unique index alarm_open on tenure.alarm (kind, tenant_id, subject) where cleared_at is null;
create index alarm_tenant on tenure.alarm (tenant_id, id) where fired_at is not null;
create index alarm_cleared on tenure.alarm (cleared_at) where cleared_at is not null;

create table tenure.alarm_mute (
    id        bigint generated always as identity primary key,
    muted_at  timestamptz not null default clock_timestamp(),
    until     timestamptz not null,
    ended_at  timestamptz, -- ended before its time
    kind      text, -- NULL: any
    tenant_id text,
    subject   text,
    muted_by  text not null,
    reason    text,
    ended_by  text,
    check ((ended_at is null) = (ended_by is null))
);
create index alarm_mute_until on tenure.alarm_mute (until);

create table tenure.alarm_notice (
    alarm_id bigint not null,
    next_at  timestamptz not null, -- when it is sent again
    sent_at  timestamptz,          -- NULL: not yet
    tries    integer not null default 1,
    change   text collate "C" not null check (change in ('fired', 'cleared')),
    sink     text collate "C" not null,
    error    text, -- of the last try
    primary key (alarm_id, change, sink)
);

create table tenure.alarm_round (
    one boolean primary key default true check (one),
    at  timestamptz not null
) with (fillfactor = 50);

-- A database with separate roles: its app goes on without `tenure migrate --grants`.
do $$
begin
    if exists (select from pg_namespace where nspname = 'tenure' and nspowner = to_regrole('tenure_owner')) then
        grant insert, update, delete on tenure.alarm, tenure.alarm_mute, tenure.alarm_notice, tenure.alarm_round to tenure_app;
    end if;
end
$$;
