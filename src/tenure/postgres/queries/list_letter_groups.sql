-- List the causes of dead letters, those with the most open letters first, each with its counts by type, tenant and release.
--
-- It reads the groups, never the dead letters: only the example of each cause on the page.
with part as materialized (
    select * from tenure.dead_letter_group
    where contract = coalesce(:contract::text, contract) and tenant_id = coalesce(:tenant::text, tenant_id)
      and type = coalesce(:type::text, type) and fingerprint = coalesce(:fingerprint::text, fingerprint)
),
cause as materialized (
    select fingerprint, sum(letters)::bigint as letters, sum(open)::bigint as open, min(first_seen) as first_seen,
           max(last_seen) as last_seen, max(last_letter) as last_letter
    from part
    group by fingerprint
    having sum(open) > 0 or :closed::boolean
    order by sum(open) desc, max(last_seen) desc, fingerprint
    limit :limit::bigint
),
-- The groups of those causes again, by the index: to compare all groups with each cause takes longer.
shown as materialized (
    select part.*
    from cause
    cross join lateral (select * from tenure.dead_letter_group where fingerprint = cause.fingerprint offset 0) as part
    where contract = coalesce(:contract::text, contract) and tenant_id = coalesce(:tenant::text, tenant_id)
      and type = coalesce(:type::text, type)
),
-- Of each cause the parts with the most letters; an application may have thousands of tenants.
split as materialized (
    select fingerprint, axis, value, sum(part.letters)::bigint as letters, sum(part.open)::bigint as open,
           min(part.first_seen) as first_seen, max(part.last_seen) as last_seen,
           row_number() over (
               partition by fingerprint, axis order by sum(part.open) desc, sum(part.letters) desc, value) as place,
           count(*) over (partition by fingerprint, axis) as of
    from shown as part cross join lateral (
        values ('contract', part.contract), ('type', part.type), ('tenant', part.tenant_id), ('release', part.release)
    ) as named (axis, value)
    group by fingerprint, axis, value
)
select cause.fingerprint, cause.letters, cause.open, cause.first_seen, cause.last_seen, cause.last_letter,
       example.reason_code, example.error_type, example.code, example.message,
       (select jsonb_agg(jsonb_build_object(
            'axis', axis, 'value', nullif(value, ''), 'letters', split.letters, 'open', split.open,
            'first_seen', tenure.iso(split.first_seen), 'last_seen', tenure.iso(split.last_seen), 'of', of)
            order by axis, place)
        from split where split.fingerprint = cause.fingerprint and place <= :parts::bigint)::text,
       letter.last_error::text
from cause
cross join lateral (
    select reason_code, error_type, code, message from shown
    where shown.fingerprint = cause.fingerprint and shown.last_letter = cause.last_letter
    limit 1
) as example
left join tenure.dead_letter as letter on letter.id = cause.last_letter
order by cause.open desc, cause.last_seen desc, cause.fingerprint
