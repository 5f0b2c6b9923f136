-- For tests: list live jobs of this contract and these types that wait for upkeep, or may do so soon.
select id
from tenure.job
where contract = :contract::text and type = any (:types::text[]) and role in ('waiting', 'leased', 'active', 'settling')
limit 10000
