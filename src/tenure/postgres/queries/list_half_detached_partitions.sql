-- List partitions whose detaching was begun and is not being continued by any process.
select parent.relname, child.relname
from pg_inherits
join pg_class as parent on parent.oid = pg_inherits.inhparent
join pg_class as child on child.oid = pg_inherits.inhrelid
where not exists (select from tenure.range where taken > clock_timestamp()) and pg_inherits.inhdetachpending and pg_inherits.inhparent in ('tenure.event'::regclass, 'tenure.job_done'::regclass)
