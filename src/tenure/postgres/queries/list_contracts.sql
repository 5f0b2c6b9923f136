-- List the registered contracts, oldest first, and the installation's id. As text: a caller's connection may read JSON in
-- its own way.
select name, version, declaration::text, (select id::text from tenure.installation)
from tenure.contract
order by registered_at, name, version
