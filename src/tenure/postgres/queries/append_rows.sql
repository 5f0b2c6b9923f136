-- Add rows to what was appended to a generation; a row whose key it has is left out. Returns how many were added.
-- The caller has sorted the rows by key, so two callers with the same keys do not deadlock.
with added as (
    insert into tenure.dataset_row (batch_id, key, value)
    select :generation_id::bigint, row.key, row.value from unnest(:keys::text[], :row_values::jsonb[]) as row (key, value)
    on conflict (batch_id, key) do nothing
    returning key
)
select count(*) from added
