-- Lock these live jobs, except those that others have locked, and read how they are.
select id, contract, version, concat_ws(':', state, claims, queue) from tenure.job
where id = any (:ids::bigint[])
order by id
for update skip locked
