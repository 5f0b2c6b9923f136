-- Create a scope of a generation with this batch of rows, or this pointer, unless it is there; waits for who creates it.
insert into tenure.dataset_scope (generation_id, scope, batch_id, location, cursor, row_count, job_id, at)
values (:generation_id::bigint, :scope::text, :batch_id::bigint, :location::text, :cursor::text, :row_count::bigint,
        :job_id::bigint, :at::timestamptz)
on conflict (generation_id, scope) do nothing
returning scope
