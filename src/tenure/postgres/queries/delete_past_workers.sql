-- Delete what is kept about workers that are gone for so long.
delete from tenure.past_worker
where (name, started_at) in (
    select name, started_at from tenure.past_worker
    where gone_at < clock_timestamp() - :keep_sec::double precision * interval '1 second'
    order by gone_at
    limit :limit::bigint
)
returning name
