-- List the subscriptions and generations whose waiting events nobody waits for: the subscription ended, or the generation
-- never becomes current again. Each pair is one step down the index, however many events wait.
with recursive pair as (
    (select subscription_id, generation_id from tenure.dataset_delivery order by subscription_id, generation_id limit 1)
    union all
    select next.*
    from pair cross join lateral (
        select subscription_id, generation_id from tenure.dataset_delivery
        where (subscription_id, generation_id) > (pair.subscription_id, pair.generation_id)
        order by subscription_id, generation_id
        limit 1
    ) as next
)
select pair.subscription_id, pair.generation_id
from pair
left join tenure.dataset_generation as generation on generation.id = pair.generation_id
where generation.id is null or generation.rolled_back_at is not null or generation.dropped_at is not null
   or not exists (select from tenure.dataset_subscription where id = pair.subscription_id)
limit :limit::bigint
