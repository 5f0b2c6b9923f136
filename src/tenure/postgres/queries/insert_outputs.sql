-- Record what a completion added to datasets.
insert into tenure.dataset_output (
    job_id, claims, at, n, generation_id, kind, row_count, given, scope, location, cursor)
select :job_id::bigint, :claims::integer, :at::timestamptz, output.n, output.generation_id, output.kind, output.row_count,
       output.given, output.scope, output.location, output.cursor
from unnest(:places::integer[], :generations::bigint[], :kinds::text[], :counts::bigint[], :given::bigint[],
            :scopes::text[], :locations::text[], :cursors::text[])
     as output (n, generation_id, kind, row_count, given, scope, location, cursor)
