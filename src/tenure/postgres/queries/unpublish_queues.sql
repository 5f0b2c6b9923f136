-- Forget published queues that no publisher has refreshed for this long; their wake-ups are deleted page by page.
delete from tenure.published_queue
where seen_at < clock_timestamp() - :unseen_s::double precision * interval '1 second'
returning queue
