-- Lock these datasets of a tenant, in the order of their ids: whoever numbers a generation or changes which is current has
-- this lock.
select id, name, current_id
from tenure.dataset
where tenant_id = :tenant_id::text and name = any (:names::text[])
order by id
for no key update
