-- Find rollbacks whose waiting jobs are not all cancelled yet.
select id, tenant_id, actor, reason from tenure.dataset_switch
where kind = 'rollback' and finished_at is null and (:id::bigint is null or id = :id::bigint)
order by id
limit :limit::bigint
