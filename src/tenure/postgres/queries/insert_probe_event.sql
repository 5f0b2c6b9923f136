-- Insert a log row of an id that no job has, in a transaction that is rolled back: to test whether anything can be logged.
insert into tenure.event (job_id, ts, seq, claims, counter, max_attempts, contract, trigger, from_state, to_state, actor)
select high - 1, clock_timestamp(), 2147483647, 0, 0, 0, :contract::text, 'claim', :state::text, :to_state::text, 'rehearsal'
from tenure.range order by low desc limit 1
