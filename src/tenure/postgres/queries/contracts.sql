-- Which contracts are registered, oldest first, and which installation is this?
select name, version, declaration, (select id::text from tenure.installation)
from tenure.contract
order by registered_at, name, version
