-- Use PostgreSQL's own planner settings in this transaction: its statements read whole tables.
select set_config(name, 'on', true)
from unnest(array['enable_seqscan', 'enable_bitmapscan', 'enable_sort', 'enable_hashjoin', 'enable_mergejoin']) as name
