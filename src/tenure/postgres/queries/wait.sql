-- A moment.
select pg_sleep(0.1)
