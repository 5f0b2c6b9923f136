-- Insert a flow, unless its tenant has used its key; waits for another transaction that uses the key for the first time.
insert into tenure.flow (first_id, last_id, nodes, open, cleanups, name, tenant_id, on_failure, key, fingerprint, created_by)
values (:first_id::bigint, :last_id::bigint, :nodes::integer, :nodes::integer, :cleanups::integer, :name::text,
        :tenant_id::text, :on_failure::text, :key::text, :fingerprint::text, :created_by::text)
on conflict (tenant_id, key) where key is not null do nothing
returning id
