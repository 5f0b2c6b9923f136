-- Find which of these jobs are live.
select id from tenure.job where id = any (:ids::bigint[])
