-- Read the state of the server: version, recovery, encoding, connections, age of transaction ids, the notification queue.
select current_setting('server_version_num')::integer as version, pg_is_in_recovery() as in_recovery,
       pg_encoding_to_char(encoding) as encoding, age(datfrozenxid) as xid_age, datconnlimit as database_limit,
       (select rolconnlimit from pg_roles where rolname = current_user) as role_limit,
       (select count(*) from pg_stat_activity where backend_type = 'client backend') as clients,
       (select count(*) from pg_stat_activity
        where backend_type = 'client backend' and datname = current_database()) as database_clients,
       (select count(*) from pg_stat_activity
        where backend_type = 'client backend' and usename = current_user) as role_clients,
       pg_notification_queue_usage() as notification_usage,
       (select count(*) filter (where sync_state in ('sync', 'quorum')) from pg_stat_replication) as sync_standbys,
       pg_has_role('pg_read_all_stats', 'usage') as sees_sessions,
       pg_postmaster_start_time() as started_at, current_user::text as role
from pg_database
where datname = current_database()
