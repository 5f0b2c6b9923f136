-- Add new dead letters to their groups; returns the id of each group, in the order given.
with given as materialized (
    select * from unnest(
        :fingerprints::text[], :contracts::text[], :tenants::text[], :types::text[], :releases::text[], :letters::bigint[],
        :opens::bigint[], :firsts::timestamptz[], :lasts::timestamptz[], :examples::bigint[], :reasons::text[],
        :error_types::text[], :codes::text[], :messages::text[]
    ) with ordinality as g (
        fingerprint, contract, tenant_id, type, release, letters, open, first_seen, last_seen, last_letter, reason_code,
        error_type, code, message, n)
),
added as (
    insert into tenure.dead_letter_group (
        fingerprint, contract, tenant_id, type, release, letters, open, first_seen, last_seen, last_letter, reason_code,
        error_type, code, message)
    select fingerprint, contract, tenant_id, type, release, letters, open, first_seen, last_seen, last_letter, reason_code,
           error_type, code, message
    from given
    order by n
    on conflict (fingerprint, contract, tenant_id, type, release) do update
    set letters = dead_letter_group.letters + excluded.letters, open = dead_letter_group.open + excluded.open,
        first_seen = least(dead_letter_group.first_seen, excluded.first_seen),
        last_seen = greatest(dead_letter_group.last_seen, excluded.last_seen),
        last_letter = greatest(dead_letter_group.last_letter, excluded.last_letter)
    returning id, fingerprint, contract, tenant_id, type, release
)
select added.id
from given join added using (fingerprint, contract, tenant_id, type, release)
order by n
