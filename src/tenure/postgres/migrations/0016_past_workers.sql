-- Workers: which release of its application each runs, and those that are gone.
--
--   worker        a live worker; also says the release of its application
--   past_worker   a worker that stopped, or was not seen any more; upkeep deletes it after a day

alter table tenure.worker add column release text; -- of its application; NULL: the application names none

-- A view keeps the columns that its table had when it was made.
create or replace view tenure.live_worker with (security_invoker = true) as
select * from tenure.worker
where last_seen_at > clock_timestamp() - interval '2 minutes'
   or name in (select lease_owner from tenure.job
               where role in ('leased', 'active') and lease_expires_at >= clock_timestamp());

create table tenure.past_worker (
    started_at   timestamptz not null,
    last_seen_at timestamptz not null,
    gone_at      timestamptz not null default clock_timestamp(), -- when it stopped, or when its row was taken away
    pid          integer,
    busy         integer not null, -- how many jobs it ran when it was last seen
    name         text collate "C" not null,
    ending       text not null check (ending in ('stopped', 'lost')),
    host         text,
    application  text,
    release      text,
    queues       text[] not null,
    primary key (name, started_at)
);
create index past_worker_gone on tenure.past_worker (gone_at);

-- A database with separate roles: its app goes on without `tenure migrate --grants`.
do $$
begin
    if exists (select from pg_namespace where nspname = 'tenure' and nspowner = to_regrole('tenure_owner')) then
        grant insert, update, delete on tenure.past_worker to tenure_app;
    end if;
end
$$;
