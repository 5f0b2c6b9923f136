-- Insert these live workers, or replace their rows. A process that took the name of another one shows that this one is gone.
with given as materialized (
    select * from jsonb_to_recordset(:workers::jsonb) as given (
        name text, pid integer, slots integer, busy integer, host text, version text, application text, queues jsonb,
        contracts jsonb, types jsonb, declares jsonb, through text, schedules jsonb, release text,
        loop_lag_s double precision)
),
replaced as (
    insert into tenure.past_worker (name, started_at, last_seen_at, pid, busy, host, application, release, queues, ending)
    select old.name, old.started_at, old.last_seen_at, old.pid, old.busy, old.host, old.application, old.release, old.queues, 'lost'
    from given join tenure.worker as old on old.name = given.name
    where given.pid is not null and old.pid is not null and (old.pid, old.host) is distinct from (given.pid, given.host)
      -- Two processes with one name that both live replace each other again and again.
      and old.last_seen_at < clock_timestamp() - interval '10 seconds'
    on conflict (name, started_at) do nothing
)
insert into tenure.worker as old (
    name, pid, slots, busy, host, version, application, queues, contracts, types, declares, through, schedules, release, loop_lag_s)
select name, pid, slots, coalesce(busy, 0), host, version, application, array(select jsonb_array_elements_text(queues)),
       array(select jsonb_array_elements_text(contracts)),
       case when jsonb_typeof(types) = 'array' then array(select jsonb_array_elements_text(types)) end,
       coalesce(declares, '{}'), through, nullif(schedules, 'null'), release, loop_lag_s
from given
order by name
on conflict (name) do update
set pid = excluded.pid, slots = excluded.slots, busy = excluded.busy, host = excluded.host, version = excluded.version,
    application = excluded.application, queues = excluded.queues, contracts = excluded.contracts, types = excluded.types,
    declares = excluded.declares, through = excluded.through, release = excluded.release,
    loop_lag_s = excluded.loop_lag_s,
    -- A claim through a dispatcher does not say which schedules its worker declares.
    schedules = coalesce(excluded.schedules, old.schedules), last_seen_at = clock_timestamp(),
    -- A new process with an old name.
    started_at = case when (old.pid, old.host) is distinct from (excluded.pid, excluded.host) then clock_timestamp()
                      else old.started_at end
