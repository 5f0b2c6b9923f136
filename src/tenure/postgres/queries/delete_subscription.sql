-- End the subscription of a task to a dataset; the events that wait for it leave later.
delete from tenure.dataset_subscription as subscription
using tenure.dataset
where dataset.id = subscription.dataset_id and dataset.tenant_id = :tenant_id::text and dataset.name = :dataset::text
  and subscription.type = :type::text and subscription.contract = :contract::text
returning subscription.id
