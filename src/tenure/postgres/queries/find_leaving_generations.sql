-- Find generations that were dropped this long ago and still have rows.
select id from tenure.dataset_generation
where dropped_at < clock_timestamp() - :after_s::double precision * interval '1 second' and emptied_at is null
order by id
limit :limit::bigint
