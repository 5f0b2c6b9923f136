-- Let this transaction alone count dead letters by cause; false: another one does.
select pg_try_advisory_xact_lock(hashtextextended('tenure.dead_letter_group', 0))
