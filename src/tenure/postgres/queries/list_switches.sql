-- List cutovers and rollbacks of a tenant, the newest first: all, or those of one dataset.
select switch.id, switch.kind, switch.tenant_id, switch.at, switch.actor, switch.reason, switch.undoes,
       (select json_agg(json_build_array(dataset.name, before.number, after.number) order by dataset.name)::text
        from tenure.dataset_switched as switched
        join tenure.dataset on dataset.id = switched.dataset_id
        join tenure.dataset_generation as before on before.id = switched.before_id
        join tenure.dataset_generation as after on after.id = switched.after_id
        where switched.switch_id = switch.id) as datasets
from tenure.dataset_switch as switch
where switch.tenant_id = :tenant_id::text and (:before::bigint is null or switch.id < :before::bigint)
  and (:dataset::text is null or switch.id = any (array(
      select switched.switch_id
      from tenure.dataset
      join tenure.dataset_switched as switched on switched.dataset_id = dataset.id
      where dataset.tenant_id = :tenant_id::text and dataset.name = :dataset::text
        and (:before::bigint is null or switched.switch_id < :before::bigint)
      order by switched.switch_id desc
      limit :limit::bigint)))
order by switch.id desc
limit :limit::bigint
