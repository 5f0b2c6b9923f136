-- Read the numbers of these generations.
select id, number from tenure.dataset_generation where id = any (:ids::bigint[])
