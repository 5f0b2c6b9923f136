-- Make a ready job due now. Not a hop: its state stays.
update tenure.job set due_at = clock_timestamp() where id = :id::bigint and role = 'ready' and due_at > clock_timestamp()
