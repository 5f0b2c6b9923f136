-- For tests: let :seconds pass for every live job of these types. Due times, lease ends and heartbeats move that much back.
update tenure.job
set due_at = due_at - :seconds::double precision * interval '1 second',
    lease_expires_at = lease_expires_at - :seconds::double precision * interval '1 second',
    last_heartbeat_at = last_heartbeat_at - :seconds::double precision * interval '1 second'
where type = any (:types::text[])
