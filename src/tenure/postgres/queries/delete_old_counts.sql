-- Delete roll-ups of this unit that are older than this, at most :limit.
delete from tenure.rollup
where ctid = any (array(
    select ctid from tenure.rollup
    where unit = :unit::text and start < clock_timestamp() - :keep_sec::double precision * interval '1 second'
    limit :limit::bigint for update skip locked
))
returning group_id
