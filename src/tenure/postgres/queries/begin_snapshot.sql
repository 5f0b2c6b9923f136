-- Make this transaction read-only and let all its statements read the same snapshot; it waits for no other transaction.
set transaction isolation level repeatable read, read only
