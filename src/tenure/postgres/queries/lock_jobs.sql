-- Lock these jobs in the order of their ids until the transaction ends.
select id from tenure.job where id = any (:ids::bigint[]) order by id for update
