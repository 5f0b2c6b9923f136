-- Find batches of rows that nobody reads since this long ago.
select id from tenure.dataset_batch
where state = 'unread' and unread_since < clock_timestamp() - :after_s::double precision * interval '1 second'
order by unread_since
limit :limit::bigint
