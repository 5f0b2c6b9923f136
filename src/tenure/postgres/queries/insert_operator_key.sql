-- Insert the idempotency key of an operator's call if it is new; wait for a first use that is not committed yet.
insert into tenure.key (tenant_id, key, verb, hash, job_id)
values (:tenant_id::text, :key::text, :verb::text, :hash::text, :job_id::bigint)
on conflict (tenant_id, key) do nothing
returning key
