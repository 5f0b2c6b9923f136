-- Create a dataset with its first generation, which is current, unless its tenant has one of this name.
with made as (
    insert into tenure.dataset (current_id, keep, name, tenant_id, created_by)
    values (nextval('tenure.dataset_generation_id_seq'), :keep::integer, :name::text, :tenant_id::text, :created_by::text)
    on conflict (tenant_id, name) do nothing
    returning id, current_id
)
insert into tenure.dataset_generation (id, dataset_id, number, current_since, created_by, shape)
select current_id, id, 1, clock_timestamp(), :created_by::text, :shape::jsonb from made
returning id
