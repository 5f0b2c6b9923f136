-- List the small tables that change all the time: live and dead rows, bytes, and when each was vacuumed last.
select relname::text, n_live_tup, n_dead_tup, pg_relation_size(relid) as bytes,
       extract(epoch from clock_timestamp() - greatest(last_vacuum, last_autovacuum))::double precision as vacuumed_ago_s
from pg_stat_user_tables
where schemaname = 'tenure' and relname = any (:tables::text[])
order by n_dead_tup desc, relname
