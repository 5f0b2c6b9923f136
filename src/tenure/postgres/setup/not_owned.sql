-- List the commands that make tenure_owner own every object of Tenure; partitions come last.
select format('alter %s %s owner to tenure_owner', kind, name) as change, is_partition
from (
    select 'schema' as kind, quote_ident(nspname) as name, nspowner as owner, false as is_partition
    from pg_namespace where nspname ~ '^tenure(_|$)'
    union all
    select case relkind when 'v' then 'view if exists' else 'table if exists' end, pg_class.oid::regclass::text,
           relowner, relispartition
    from pg_class join pg_namespace on pg_namespace.oid = relnamespace
    where nspname ~ '^tenure(_|$)' and relkind in ('r', 'p', 'v')
    union all
    select case typtype when 'd' then 'domain' else 'type' end, pg_type.oid::regtype::text, typowner, false
    from pg_type join pg_namespace on pg_namespace.oid = typnamespace
    where nspname = 'tenure'
      and (typtype = 'd' or exists (select from pg_class where pg_class.oid = typrelid and relkind = 'c'))
    union all
    select 'function', pg_proc.oid::regprocedure::text, proowner, false
    from pg_proc join pg_namespace on pg_namespace.oid = pronamespace
    where nspname = 'tenure'
) as ours
where owner <> 'tenure_owner'::regrole
order by is_partition;
