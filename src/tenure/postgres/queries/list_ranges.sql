-- List the id ranges in which ids were given and which are not being dropped, oldest first.
-- A role that may not read the last id given also gets the empty ranges.
select low, high from tenure.range
where leaving is null
  and low <= coalesce((select last_value from pg_sequences where schemaname = 'tenure' and sequencename = 'job_id_seq'), low)
order by low
