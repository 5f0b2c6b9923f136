-- List subscriptions by dataset and type, with the number of events that wait for each, up to 10,000.
select subscription.id, dataset.name, dataset.tenant_id, subscription.contract, subscription.type, subscription.argument,
       subscription.application, subscription.created_at,
       (select count(*) from (
            select from tenure.dataset_delivery where subscription_id = subscription.id limit 10000
        ) as waiting) as waiting,
       subscription.last_error
from tenure.dataset_subscription as subscription
join tenure.dataset on dataset.id = subscription.dataset_id
where (:tenant_id::text is null or dataset.tenant_id = :tenant_id::text)
  and (:dataset::text is null or dataset.name = :dataset::text)
  and (:type::text is null or subscription.type = :type::text)
  and (:contract::text is null or subscription.contract = :contract::text)
order by dataset.tenant_id, dataset.name, subscription.type, subscription.contract
limit :limit::bigint
