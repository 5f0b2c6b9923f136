-- Store a schedule's declaration and its next fire time; its pause stays.
update tenure.schedule
set tenant_id = :tenant_id::text, in_code = :in_code::boolean, declaration = :declaration::jsonb,
    fingerprint = :fingerprint::text, earlier = :earlier::text[], declared_by = :declared_by::text,
    declared_at = clock_timestamp(), withdrawn_at = null, fire_at = :fire_at::timestamptz, next_at = :next_at::timestamptz,
    updated_at = clock_timestamp()
where id = :id::bigint
