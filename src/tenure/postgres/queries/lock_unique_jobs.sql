-- Lock the rows of these unique scopes until the transaction ends; insert those that do not exist.
--
-- The scopes come sorted, so two callers with the same scopes never deadlock. The statement waits for a scope that another
-- transaction has locked or inserted. What it read before that wait is old, so judge_unique_jobs.sql judges.
insert into tenure.unique_job (contract, tenant_id, type, scope)
select :contract::text, a.tenant_id, a.type, a.scope
from unnest(:tenants::text[], :types::text[], :scopes::text[]) with ordinality as a (tenant_id, type, scope, n)
order by a.n
on conflict (contract, tenant_id, type, scope) do update set job_id = unique_job.job_id
