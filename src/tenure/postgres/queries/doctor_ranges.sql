-- Read the id ranges: how many there are, how many lie ahead of the last id, which have no partitions, and all relations.
with last as materialized (
    select coalesce(last_value, 0) as id from pg_sequences where schemaname = 'tenure' and sequencename = 'job_id_seq'
),
attached as materialized (
    select child.relname::text as name
    from pg_inherits join pg_class as child on child.oid = inhrelid
    where inhparent in ('tenure.event'::regclass, 'tenure.job_done'::regclass) and not inhdetachpending
)
select (select id from last) as last_id, count(*) as ranges, max(high) as ends_at,
       count(*) filter (where leaving is null and low > (select id from last)) as ahead,
       array(select low from tenure.range as r
             where leaving is null
               and not ('event_' || low / 1048576 in (select name from attached)
                        and 'job_done_' || low / 1048576 in (select name from attached))
             order by low limit 10) as without_partition,
       (select count(*) from pg_inherits
        where inhdetachpending and inhparent in ('tenure.event'::regclass, 'tenure.job_done'::regclass)) as half_detached,
       (select count(*) from pg_class
        where relnamespace = 'tenure'::regnamespace and relkind in ('r', 'p', 'i', 'I')) as relations
from tenure.range
