-- Tell whoever listens that work is there: one wake-up for each name, heard when this transaction commits.
select pg_notify('tenure', name) from unnest(:names::text[]) as name
