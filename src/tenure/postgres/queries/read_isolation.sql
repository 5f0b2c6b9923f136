-- Read the isolation level of the transaction that is open.
select current_setting('transaction_isolation')
