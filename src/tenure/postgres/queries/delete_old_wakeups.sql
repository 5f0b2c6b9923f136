-- Delete wake-ups that were published this long ago and are not checked again.
with old as materialized (
    select id from tenure.outbox
    -- The clock is a subselect, because a volatile function would bound no range of the index.
    where published_at < (select clock_timestamp()) - :age_s::double precision * interval '1 second'
      and published_at is not null and check_at is null
    order by published_at
    limit :limit::bigint
    for update skip locked
)
delete from tenure.outbox
where id = any (array(select id from old))
returning id
