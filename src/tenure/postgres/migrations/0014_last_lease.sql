-- A job that is not held any more keeps the owner and the end of its last lease, for the dead letter that it may become.

-- Both tables keep the same columns: processes of the release before this one read them with `select *`. NULL in jobs
-- that nobody has held since this migration, and in all finished ones; no row is rewritten.
alter table tenure.job add column last_lease_expires_at timestamptz;
alter table tenure.job add column last_owner text;
alter table tenure.job_done add column last_lease_expires_at timestamptz;
alter table tenure.job_done add column last_owner text;
