-- Begin to work on an operation, beside others; an abort waits for the end of this transaction.
select pg_advisory_xact_lock_shared(hashtextextended('tenure.operation:' || :id::text, 0))
