-- Update when these workers were seen, how many jobs each runs and how late its event loop is; return those that have a row.
-- No index has these columns.
update tenure.worker
set busy = coalesce(seen.busy, worker.busy), loop_lag_s = coalesce(seen.loop_lag_s, worker.loop_lag_s),
    last_seen_at = clock_timestamp()
from unnest(:names::text[], :busy::integer[], :lags::double precision[]) as seen (name, busy, loop_lag_s)
where worker.name = any (array[seen.name])
returning worker.name
