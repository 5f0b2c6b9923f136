-- Give a locked scope of a generation this batch of rows, or this pointer; nobody reads its former batch any more.
with changed as (
    update tenure.dataset_scope
    set batch_id = :batch_id::bigint, location = :location::text, cursor = :cursor::text, row_count = :row_count::bigint,
        job_id = :job_id::bigint, at = :at::timestamptz
    where generation_id = :generation_id::bigint and scope = :scope::text
    returning scope
)
update tenure.dataset_batch set state = 'unread', unread_since = clock_timestamp()
from changed
where dataset_batch.id = :former::bigint
