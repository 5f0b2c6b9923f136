-- List objects of the schema that are missing or changed: indexes, the guards of the log, storage, autovacuum.
select 'index-missing' as what, needed.name
from unnest(:indexes::text[]) as needed (name)
where to_regclass('tenure.' || needed.name) is null
union all
select 'index-invalid', pg_class.relname::text
-- `offset 0`: begin with the few invalid ones; thousands of id ranges have tens of thousands of indexes.
from (select indexrelid from pg_index where not indisvalid offset 0) as invalid
join pg_class on pg_class.oid = indexrelid
where relnamespace = 'tenure'::regnamespace
union all
select 'log-unprotected', needed.name
from unnest('{keep_the_log,keep_the_whole_log}'::text[]) as needed (name)
where not exists (select from pg_trigger where tgrelid = 'tenure.event'::regclass and tgname = needed.name)
   or exists (select from pg_trigger where tgname = needed.name and tgenabled not in ('O', 'A'))
union all
select case when relpersistence = 'u' then 'unlogged-table' else 'autovacuum-off' end, relname::text
from pg_class
where relnamespace = 'tenure'::regnamespace and relkind in ('r', 'p')
  and (relpersistence = 'u' or array['autovacuum_enabled=false', 'autovacuum_enabled=off'] && reloptions)
order by 1, 2
limit :limit::bigint
