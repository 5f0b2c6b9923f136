-- Update when these workers were seen and how many jobs each runs; return those that have a row. No index has these columns.
update tenure.worker
set busy = coalesce(seen.busy, worker.busy), last_seen_at = clock_timestamp()
from unnest(:names::text[], :busy::integer[]) as seen (name, busy)
where worker.name = any (array[seen.name])
returning worker.name
