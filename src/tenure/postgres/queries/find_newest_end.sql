-- Find when the newest ended job that is not taken into account yet ended, of those until a time, or of all. Leaves out
-- these flows, and ends of no flow.
select max(flow_end.at)
from tenure.flow_end
join tenure.flow on flow.id = flow_end.flow_id
where (:until::timestamptz is null or flow_end.at <= :until::timestamptz) and flow.id <> all (:but::bigint[])
