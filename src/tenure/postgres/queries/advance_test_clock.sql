-- For tests: let :seconds pass for every live job of these types: due times, expiries, lease ends and heartbeats move back.
-- The periods of unique jobs of these types move back too.
with unique_jobs as (
    update tenure.unique_job
    set made_at = made_at - :seconds::double precision * interval '1 second',
        until = until - :seconds::double precision * interval '1 second'
    where type = any (:types::text[])
)
update tenure.job
set due_at = due_at - :seconds::double precision * interval '1 second',
    lease_expires_at = lease_expires_at - :seconds::double precision * interval '1 second',
    expires_at = expires_at - :seconds::double precision * interval '1 second',
    last_heartbeat_at = last_heartbeat_at - :seconds::double precision * interval '1 second'
where type = any (:types::text[])
