-- Apply the engine's settings to this transaction; return its isolation level and whether it is read-only.
select count(set_config(name, value, true)), current_setting('transaction_isolation'),
       current_setting('transaction_read_only')
from unnest(:names::text[], :settings::text[]) as setting (name, value)
