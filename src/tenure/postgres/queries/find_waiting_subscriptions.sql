-- Find the subscriptions for which events of a current generation wait, and which did not fail just before.
select subscription.id
from tenure.dataset_subscription as subscription
join tenure.dataset on dataset.id = any (array[subscription.dataset_id])
where (subscription.retry_at is null or subscription.retry_at <= clock_timestamp())
  and exists (
      select from tenure.dataset_delivery as delivery
      where delivery.subscription_id = subscription.id and delivery.generation_id = dataset.current_id)
order by subscription.id
