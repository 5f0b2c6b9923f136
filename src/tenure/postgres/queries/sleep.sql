-- Wait for 100 ms.
select pg_sleep(0.1)
