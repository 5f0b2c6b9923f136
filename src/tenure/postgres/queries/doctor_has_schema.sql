-- Tell whether the schema exists, and whether this role may use it.
select exists (select from pg_class where relname = 'migration' and relnamespace = to_regnamespace('tenure')),
       coalesce(has_schema_privilege(to_regnamespace('tenure'), 'usage'), false)
