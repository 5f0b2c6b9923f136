-- Create a generation of this locked dataset: of the given shape, else of the newest one's.
insert into tenure.dataset_generation (dataset_id, number, flow_id, created_by, shape)
select newest.dataset_id, newest.number + 1, :flow_id::bigint, :created_by::text,
       case when :has_shape::boolean then :shape::jsonb else newest.shape end
from (
    select dataset_id, number, shape from tenure.dataset_generation
    where dataset_id = :dataset_id::bigint
    order by number desc
    limit 1
) as newest
returning id, number
