-- List prepared transactions that nobody has ended for long: they keep their locks and their snapshot until then.
select gid, owner::text, extract(epoch from clock_timestamp() - prepared)::double precision as age_s
from pg_prepared_xacts
where database = current_database() and prepared < clock_timestamp() - :least_s::double precision * interval '1 second'
order by prepared
limit :limit::bigint
