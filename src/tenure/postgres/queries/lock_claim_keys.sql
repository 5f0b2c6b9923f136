-- Wait until no other call claims with one of these keys; until this transaction ends, no other call can.
select count(pg_advisory_xact_lock(hashtextextended(key::text, 0)))
from (select key from unnest(:claim_keys::uuid[]) as key order by key) as sorted
