-- Create an empty batch of rows for an attempt.
insert into tenure.dataset_batch (generation_id, job_id, claims, state)
values (:generation_id::bigint, :job_id::bigint, :claims::integer, :state::text)
returning id
