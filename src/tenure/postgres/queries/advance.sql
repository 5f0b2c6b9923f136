-- For tests: so much time passes for every live job. What it waits for and what it holds come that much nearer.
update tenure.job
set due_at = due_at - :seconds::double precision * interval '1 second',
    lease_expires_at = lease_expires_at - :seconds::double precision * interval '1 second',
    last_heartbeat_at = last_heartbeat_at - :seconds::double precision * interval '1 second'
