-- Let the next one.
select pg_advisory_unlock(hashtextextended('tenure.retire', 0))
