-- Wait until no transaction works on this operation. Those that begin later see its state.
select pg_advisory_xact_lock(hashtextextended('tenure.operation:' || :id::text, 0))
