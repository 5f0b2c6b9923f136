-- Tell whether a declaration of a schedule is in use: a live worker has it, or it was made in the last 30 seconds.
--
-- The worker that made it may not have written its row in tenure.worker yet.
select exists (select from tenure.live_worker
               where application = :application::text and schedules ->> :name::text = :fingerprint::text)
       or :declared_at::timestamptz > clock_timestamp() - interval '30 seconds'
