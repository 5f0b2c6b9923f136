-- Read settings as the server, this database and this role have them; nothing has changed them in this session yet.
select name, setting from pg_settings where name = any (:names::text[])
