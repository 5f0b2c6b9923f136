-- Delete wake-ups that were published this long ago and are not checked again.
with old as (
    select id from tenure.outbox
    where published_at < clock_timestamp() - :age_s::double precision * interval '1 second' and check_at is null
    order by published_at
    limit :limit::bigint
    for update skip locked
)
delete from tenure.outbox
where id in (select id from old)
returning id
