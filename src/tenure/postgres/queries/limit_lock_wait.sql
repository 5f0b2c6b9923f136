-- Let this transaction wait at most :ms milliseconds for a lock.
select set_config('lock_timeout', :ms::text, true)
