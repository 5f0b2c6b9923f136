-- Insert rows into a batch that only this attempt writes; returns how many. A key that is staged already is left out.
with added as (
    insert into tenure.dataset_row (batch_id, key, value)
    select :batch_id::bigint, row.key, row.value from unnest(:keys::text[], :row_values::jsonb[]) as row (key, value)
    on conflict (batch_id, key) do nothing
    returning key
)
select count(*) from added
