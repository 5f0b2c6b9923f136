-- Find the job that was enqueued with this key for this work.
select job_id from tenure.key
where tenant_id = :tenant_id::text and key = :key::text and verb = 'enqueue' and hash = :hash::text
