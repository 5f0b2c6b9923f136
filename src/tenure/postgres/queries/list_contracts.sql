-- List the registered contracts, oldest first, and the installation's id.
select name, version, declaration, (select id::text from tenure.installation)
from tenure.contract
order by registered_at, name, version
