-- What the next statements read, they read of one moment; nobody waits for it.
set transaction isolation level repeatable read, read only
