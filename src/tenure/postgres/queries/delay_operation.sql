-- Let the next batch of an operation begin when its limit of speed allows. What a late batch missed it may catch up for a second.
update tenure.operation
set next_at = greatest(next_at, clock_timestamp() - interval '1 second')
              + :done::bigint / per_second * interval '1 second'
where id = :id::bigint
