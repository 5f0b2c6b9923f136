-- For tests: read the name of this database and its comment.
select datname, shobj_description(oid, 'pg_database') from pg_database where datname = current_database()
