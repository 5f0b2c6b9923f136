-- List the applied migrations.
select number, name, checksum from tenure.migration order by number
