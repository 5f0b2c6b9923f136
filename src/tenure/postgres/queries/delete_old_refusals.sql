-- Delete refusals that are older than this, at most :limit; they stay counted.
delete from tenure.refusal
where ctid = any (array(
    select ctid from tenure.refusal
    where at < clock_timestamp() - :keep_sec::double precision * interval '1 second'
    limit :limit::bigint for update skip locked
))
returning job_id
