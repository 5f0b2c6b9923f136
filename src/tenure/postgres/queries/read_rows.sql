-- Read rows of these batches, of each those behind a key, in the order of the batches and by key, until they are so many
-- bytes; each with the number of rows that were found.
select scope, batch_id, key, value, found
from (
    select part.scope, part.batch_id, row.key, row.value, part.n, count(*) over () as found,
           sum(octet_length(row.value)) over (order by part.n, row.key) - octet_length(row.value) as before
    from unnest(:scopes::text[], :batches::bigint[], :afters::text[])
         with ordinality as part (scope, batch_id, after, n)
    cross join lateral (
        select key, value::text as value from tenure.dataset_row
        where batch_id = part.batch_id and key > part.after
        order by key
        limit :limit::bigint
    ) as row
    order by part.n, row.key
    limit :limit::bigint
) as page
where before < :max_bytes::bigint
order by n, key
