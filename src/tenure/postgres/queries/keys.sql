-- Which of these idempotency keys are new, and which job does each of the others stand for?
--
-- A new key gets the id of the job that is about to be made for it, in the same transaction. Keys come sorted, so two
-- callers with the same keys never wait for each other in a circle. A key whose first use is not committed yet makes us
-- wait; this statement cannot see it afterwards, and the store asks again.
with asked as materialized (
    select coalesce(a.tenant_id, :every_tenant::text) as tenant_id, a.key, a.hash, a.n
    from unnest(:keys::text[], :hashes::text[], :each_tenant::text[]) with ordinality as a (key, hash, tenant_id, n)
),
fresh as (
    insert into tenure.key (tenant_id, key, verb, hash, job_id)
    select tenant_id, key, 'enqueue', hash, nextval('tenure.job_id_seq') from asked order by n
    on conflict (tenant_id, key) do nothing
    returning tenant_id, key, verb, hash, job_id
)
select tenant_id, key, verb, hash, job_id, true as made from fresh
union all
select used.tenant_id, used.key, used.verb, used.hash, used.job_id, false
from asked cross join lateral (
    select * from tenure.key where key.tenant_id = asked.tenant_id and key.key = asked.key
) as used
