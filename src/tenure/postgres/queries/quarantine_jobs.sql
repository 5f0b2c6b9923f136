-- Leave these jobs out of claims: they cannot be logged, and would fail every claim that meets them.
update tenure.job set quarantined_at = clock_timestamp(), quarantine_reason = found.reason
from unnest(:ids::bigint[], :reasons::text[]) as found (id, reason)
where job.id = found.id and quarantined_at is null
