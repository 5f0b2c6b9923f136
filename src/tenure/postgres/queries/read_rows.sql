-- Read rows of these batches, of each those behind a key, in the order of the batches and by key.
select part.scope, part.batch_id, row.key, row.value::text
from unnest(:scopes::text[], :batches::bigint[], :afters::text[]) with ordinality as part (scope, batch_id, after, n)
cross join lateral (
    select key, value from tenure.dataset_row
    where batch_id = part.batch_id and key > part.after
    order by key
    limit :limit::bigint
) as row
order by part.n, row.key
limit :limit::bigint
