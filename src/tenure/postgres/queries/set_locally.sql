-- Let this transaction run under the engine's settings; at which isolation does it run, and may it write?
select count(set_config(name, value, true)), current_setting('transaction_isolation'),
       current_setting('transaction_read_only')
from unnest(:names::text[], :settings::text[]) as setting (name, value)
