-- Tell whether this partition exists, and whether it is attached.
select pg_inherits.inhrelid is not null as attached
from pg_class left join pg_inherits on pg_inherits.inhrelid = pg_class.oid
where pg_class.oid = to_regclass(:name::text)
