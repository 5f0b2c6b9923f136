-- Insert the members of a mapped node, which is started: one for each item of its list. Returns their ids in order.
with mapped as materialized (
    update tenure.flow_node set open = :count::integer where id = :id::bigint
    returning id, flow_id, feeds, name, on_failure, contract, queue, type
)
insert into tenure.flow_node (id, flow_id, job_id, part_of, place, started_at, open, feeds, name, state, on_failure,
                              contract, queue, type)
select member.id, flow_id, member.id, mapped.id, member.place, clock_timestamp(), 0, feeds, name || '[' || member.place || ']',
       'started', on_failure, contract, queue, type
from mapped, (
    select nextval('tenure.job_id_seq') as id, n as place from generate_series(0, :count::integer - 1) as n
) as member
returning id
