-- Lock these dead letters, except those that others have locked, and read how they are.
select id, job_id, contract, concat_ws(':', status, discard_asked_by) from tenure.dead_letter
where id = any (:ids::bigint[])
order by id
for update skip locked
