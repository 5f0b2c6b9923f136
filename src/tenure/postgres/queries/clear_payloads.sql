-- Set the verbose payloads of one id range that are older than :keep_sec to NULL; their events stay. Skips locked rows.
update tenure.event
set facts = null
from (
    select job_id, seq
    from tenure.event
    where job_id >= :low::bigint and job_id < :high::bigint and not hop and facts is not null
      and ts < clock_timestamp() - :keep_sec::double precision * interval '1 second'
      and (contract, trigger) in (select * from unnest(:contracts::text[], :facts::text[]))
    order by ts
    limit :limit::bigint
    for update skip locked
) as old
where event.job_id = old.job_id and event.seq = old.seq
  and event.job_id >= :low::bigint and event.job_id < :high::bigint
returning event.seq
