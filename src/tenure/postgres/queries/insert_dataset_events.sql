-- Store events of datasets with the completion that reports them, and a delivery for each subscription to their datasets.
with event as (
    insert into tenure.dataset_event (generation_id, job_id, open, routed_at, input)
    select call.generation_id, :job_id::bigint, subscribed.count, case when subscribed.count = 0 then clock_timestamp() end,
           call.input
    from unnest(:generations::bigint[], :datasets::bigint[], :inputs::jsonb[])
         with ordinality as call (generation_id, dataset_id, input, n)
    cross join lateral (
        select count(*) from tenure.dataset_subscription where dataset_id = call.dataset_id
    ) as subscribed
    order by call.n
    returning id, generation_id
)
insert into tenure.dataset_delivery (subscription_id, generation_id, event_id)
select subscription.id, event.generation_id, event.id
from event
join tenure.dataset_generation as generation on generation.id = event.generation_id
join tenure.dataset_subscription as subscription on subscription.dataset_id = generation.dataset_id
