-- Count deliveries that were made, or that nobody waits for any more; an event without open ones is routed.
update tenure.dataset_event as event
set open = event.open - made.count, routed_at = case when event.open = made.count then clock_timestamp() end
from (
    select id, count(*) as count from unnest(:ids::bigint[]) as delivery (id) group by id order by id
) as made
where event.id = any (array[made.id])
