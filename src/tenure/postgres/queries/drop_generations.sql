-- Mark these locked generations as dropped, except current ones and those that a live job, or a node of a flow that is not
-- over, reads or writes.
update tenure.dataset_generation as generation
set dropped_at = clock_timestamp()
from tenure.dataset
where generation.id = any (:ids::bigint[]) and dataset.id = generation.dataset_id and dataset.current_id <> generation.id
  and not exists (
      select from tenure.dataset_pin as pin join tenure.job on job.id = pin.job_id
      where pin.generation_id = generation.id)
  and not exists (
      select from tenure.dataset_pin as pin join tenure.flow_node as node on node.id = pin.job_id
      where pin.generation_id = generation.id and node.state in ('waiting', 'started'))
returning generation.id
