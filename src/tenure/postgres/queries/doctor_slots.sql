-- List replication slots: whether they are in use, how many transactions they hold back, and how many bytes of WAL they keep.
select slot_name::text, active, greatest(age(xmin), age(catalog_xmin)) as xmin_age,
       pg_wal_lsn_diff(case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end,
                       restart_lsn)::bigint as wal_bytes,
       wal_status
from pg_replication_slots
order by slot_name
