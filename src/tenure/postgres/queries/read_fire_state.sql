-- Tell under a schedule's lock whether the job of its last fire waits or runs, and which of these times were fired already.
--
-- A statement of its own: its snapshot is taken after the lock, so it sees what the last holder of the lock committed.
select exists (select from tenure.job where id = :last_job_id::bigint),
       array(select fire_at from tenure.schedule_fire
             where schedule_id = :schedule_id::bigint and fire_at = any (:fire_ats::timestamptz[]))
