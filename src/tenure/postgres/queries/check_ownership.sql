-- Tell whether this connection may vacuum, detach and drop.
select pg_has_role(relowner, 'usage') from pg_class where oid = 'tenure.job'::regclass
