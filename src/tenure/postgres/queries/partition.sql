-- Does this partition exist, is it attached, and was its detaching begun?
select pg_inherits.inhrelid is not null as attached, coalesce(pg_inherits.inhdetachpending, false) as pending
from pg_class
left join pg_inherits on pg_inherits.inhrelid = pg_class.oid
where pg_class.oid = to_regclass(:name::text)
