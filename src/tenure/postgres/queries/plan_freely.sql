-- Let this transaction's statements be planned as PostgreSQL likes: they read whole tables, the engine's never do.
select set_config(name, 'on', true)
from unnest(array['enable_seqscan', 'enable_bitmapscan', 'enable_sort', 'enable_hashjoin', 'enable_mergejoin']) as name
