-- Read the id ranges, whether each has its partitions, attached, and the last id that was given.
select low, high, leaving is not null as leaving,
       exists (select from pg_inherits where inhparent = 'tenure.event'::regclass
                                         and inhrelid = to_regclass(format('tenure.event_%s', low / 1048576))) as has_events,
       exists (select from pg_inherits where inhparent = 'tenure.job_done'::regclass
                                         and inhrelid = to_regclass(format('tenure.job_done_%s', low / 1048576))) as has_jobs,
       (select last_value from pg_sequences where schemaname = 'tenure' and sequencename = 'job_id_seq') as last_id
from tenure.range
order by low
