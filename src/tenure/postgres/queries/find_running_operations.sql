-- Find operations of which a batch may run, the longest waiting first.
select id from tenure.operation where state = 'running' and next_at <= clock_timestamp() order by next_at, id limit 100
