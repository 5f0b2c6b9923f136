-- Record that the appended rows of a dropped generation have left, and let the batches of its scopes leave.
with gone as (
    delete from tenure.dataset_scope where generation_id = :id::bigint returning batch_id
),
unread as (
    update tenure.dataset_batch set state = 'unread', unread_since = clock_timestamp()
    from gone
    where dataset_batch.id = any (array[gone.batch_id])
)
update tenure.dataset_generation set emptied_at = clock_timestamp() where id = :id::bigint
