-- Lock a subscription, unless another process routes its events.
select id, dataset_id, contract, type, argument, failures, job::text
from tenure.dataset_subscription
where id = :id::bigint
for update skip locked
