-- List sessions of Tenure that wait for a lock for long, each with a session that blocks it.
select waiting.pid, waiting.application_name, extract(epoch from clock_timestamp() - waiting.query_start)::double precision as waited_s,
       blocking.pid as blocking_pid, blocking.usename::text as blocking_user, blocking.application_name as blocking_application,
       blocking.state as blocking_state
from pg_stat_activity as waiting
cross join lateral (select min(pid) as pid from unnest(pg_blocking_pids(waiting.pid)) as by (pid)) as first
join pg_stat_activity as blocking on blocking.pid = first.pid
where waiting.datname = current_database() and waiting.wait_event_type = 'Lock' and waiting.query like '/* tenure%'
  and waiting.query_start < clock_timestamp() - :least_s::double precision * interval '1 second'
order by waiting.query_start
limit :limit::bigint
