-- Wait for these jobs, in one order, and keep them until the transaction ends.
select id from tenure.job where id = any (:ids::bigint[]) order by id for update
