-- The id ranges, and whether what stands for each is there.
select low, high, leaving is not null as leaving, to_regclass(format('tenure.event_%s', low / 1048576)) is not null as has_events,
       to_regclass(format('tenure.job_done_%s', low / 1048576)) is not null as has_jobs,
       (select max_value from pg_sequences where schemaname = 'tenure' and sequencename = 'job_id_seq') as last_id
from tenure.range
order by low
