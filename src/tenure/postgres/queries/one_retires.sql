-- One process at a time lets ranges leave; the others need not wait.
select pg_try_advisory_lock(hashtextextended('tenure.retire', 0))
