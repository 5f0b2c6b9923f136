-- Read the id of this database, to tell it from another one.
select id::text from tenure.installation
