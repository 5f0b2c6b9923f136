-- The token of the holder whose own call led a job to its commit point. Its lease is over there, as law 6 wants; a repeat of its
-- call differs from another caller's by this, until the final hop keeps it in job_done.lease_token. NULL for every
-- other job; job_done has the column because both tables have the same ones.
alter table tenure.job add column finisher uuid;
alter table tenure.job_done add column finisher uuid;

-- When the second person agreed to a discard. NULL for those that were approved before this column: updated_at tells of them.
alter table tenure.dead_letter add column discard_approved_at timestamptz;
