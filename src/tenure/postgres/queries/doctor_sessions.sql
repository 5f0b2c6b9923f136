-- List transactions that keep a snapshot for long, oldest first: vacuum removes no row that died since. A vacuum keeps none.
select pid, usename::text, application_name, state, extract(epoch from clock_timestamp() - xact_start)::double precision as age_s,
       left(query, 200) as query
from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and backend_type <> 'autovacuum worker'
  and (backend_xmin is not null or backend_xid is not null)
  and xact_start < clock_timestamp() - :least_s::double precision * interval '1 second'
  and query !~* '^(/\*[^*]*\*/)?\s*vacuum'
order by xact_start
limit :limit::bigint
