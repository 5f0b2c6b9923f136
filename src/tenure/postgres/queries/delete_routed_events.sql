-- Delete events that were routed this long ago.
delete from tenure.dataset_event
where id = any (array(
    select id from tenure.dataset_event
    where routed_at < clock_timestamp() - :after_s::double precision * interval '1 second'
    order by routed_at
    limit :limit::bigint))
returning id
