-- Count the live jobs of each contract in each state.
select contract, state, role, count(*) from tenure.job group by contract, state, role
