-- Close a preview: nobody can start it or go on with it, and it is deleted with its items, by upkeep if not before.
update tenure.operation
set state = 'aborted', collected = false, ended_at = 'epoch', started_by = :actor::text, aborted_by = :actor::text
where id = :id::bigint and state = 'preview'
returning id
