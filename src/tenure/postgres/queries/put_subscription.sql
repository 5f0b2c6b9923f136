-- Let a task run for each event of a dataset from now on, or change how; an unchanged subscription is not written.
insert into tenure.dataset_subscription as subscription (dataset_id, contract, type, argument, application, job)
select id, :contract::text, :type::text, :argument::text, :application::text, :job::jsonb
from tenure.dataset
where tenant_id = :tenant_id::text and name = :dataset::text
on conflict (dataset_id, contract, type) do update
set argument = excluded.argument, application = excluded.application, job = excluded.job, retry_at = null
where (subscription.argument, subscription.application, subscription.job)
      is distinct from (excluded.argument, excluded.application, excluded.job)
returning id
