-- Count the finished jobs of each contract in each state, in one id range.
select contract, state, role, count(*)
from tenure.job_done
where id >= :low::bigint and id < :high::bigint
group by contract, state, role
