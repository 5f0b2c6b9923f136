-- Delete refusals that are older than this, and those behind the :most newest, at most :limit; they stay counted.
delete from tenure.refusal
where ctid = any (array(
    select ctid from tenure.refusal
    where at < greatest(clock_timestamp() - :keep_sec::double precision * interval '1 second',
                        (select at from tenure.refusal order by at desc offset :most::bigint - 1 limit 1))
    limit :limit::bigint for update skip locked
))
returning job_id
