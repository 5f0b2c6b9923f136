-- Which verbose payloads have lived long enough? They are forgotten; their events stay. Skips what others are at.
update tenure.event
set facts = null
from (
    select job_id, seq
    from tenure.event
    where not hop and facts is not null and ts < clock_timestamp() - :keep_sec::double precision * interval '1 second'
      and contract = :contract::text and trigger = any (:facts::text[])
    order by ts
    limit :limit::bigint
    for update skip locked
) as old
where event.job_id = old.job_id and event.seq = old.seq
returning event.seq
