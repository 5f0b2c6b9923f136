-- Lock these generations, in the order of their ids; waits for open transactions that make jobs with them.
select id, number, rolled_back_at is not null as is_rolled_back, dropped_at is not null as is_dropped
from tenure.dataset_generation
where id = any (:ids::bigint[])
order by id
for update
