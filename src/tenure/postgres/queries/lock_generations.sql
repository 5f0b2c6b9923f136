-- Lock generations of locked datasets, by dataset and number: they are not dropped or rolled back before this transaction ends.
select generation.*
from unnest(:datasets::bigint[], :numbers::bigint[]) with ordinality as call (dataset_id, number, n)
cross join lateral (
    select dataset_id, id, number, rolled_back_at is not null as is_rolled_back, dropped_at is not null as is_dropped
    from tenure.dataset_generation
    where dataset_id = call.dataset_id and number = call.number
    for no key update
) as generation
