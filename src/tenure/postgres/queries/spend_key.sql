-- Is this operator's key new? If so it is spent; if its first use is under way, wait for it.
insert into tenure.key (tenant_id, key, verb, hash, job_id)
values (:tenant_id::text, :key::text, :verb::text, :hash::text, :job_id::bigint)
on conflict (tenant_id, key) do nothing
returning key
