-- Add staged rows to what was appended to a generation; a row whose key it has is left out. Returns how many were added.
with added as (
    insert into tenure.dataset_row (batch_id, key, value)
    select :generation_id::bigint, key, value from tenure.dataset_row where batch_id = :staged::bigint order by key
    on conflict (batch_id, key) do nothing
    returning key
)
select count(*) from added
