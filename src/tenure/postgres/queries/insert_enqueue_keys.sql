-- Insert the new ones of these idempotency keys; return each key with the job that it stands for.
--
-- A new key gets the id of the job that is about to be inserted for it, in the same transaction. Keys come sorted, so two
-- callers with the same keys never deadlock. The statement waits for a key whose first use is not committed yet; it cannot
-- see that key afterwards, and the store asks again.
with call as materialized (
    select coalesce(a.tenant_id, :every_tenant::text) as tenant_id, a.key, a.hash, a.n
    from unnest(:keys::text[], :hashes::text[], :each_tenant::text[]) with ordinality as a (key, hash, tenant_id, n)
),
inserted as (
    insert into tenure.key (tenant_id, key, verb, hash, job_id)
    select tenant_id, key, 'enqueue', hash, nextval('tenure.job_id_seq') from call order by n
    on conflict (tenant_id, key) do nothing
    returning tenant_id, key, verb, hash, job_id
)
select tenant_id, key, verb, hash, job_id, true as made from inserted
union all
select used.tenant_id, used.key, used.verb, used.hash, used.job_id, false
from call cross join lateral (
    select * from tenure.key where key.tenant_id = call.tenant_id and key.key = call.key
) as used
