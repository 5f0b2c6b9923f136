-- How many jobs of each contract stand in each state, live and finished?
select contract, state, role, count(*) from (
    select contract, state, role from tenure.job
    union all
    select contract, state, role from tenure.job_done
) as every
group by contract, state, role
order by contract, state
