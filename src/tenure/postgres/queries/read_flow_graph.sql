-- Read all nodes of a flow as a resume needs them: what they are, how they ended, and what they need.
select id, name, state, coalesce(on_failure, :on_failure::text), part_of, "each" is not null, is_cleanup, job_id, parents, open
from tenure.flow_node
where flow_id = :id::bigint
order by id
