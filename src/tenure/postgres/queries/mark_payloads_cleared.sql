-- Mark an id range in which no verbose payload is left and none can come.
-- It has no live job and has been full for a day, so that no open transaction inserts a job into it. A later range shows
-- that by the last id that was given when it was made.
update tenure.range
set faded = true
where low = :low::bigint
  and exists (select from tenure.range as later
              where later.given >= :high::bigint and later.made_at < clock_timestamp() - interval '1 day')
  and not exists (select from tenure.job where id >= :low::bigint and id < :high::bigint)
  and not exists (
      select from tenure.event
      where job_id >= :low::bigint and job_id < :high::bigint and not hop and facts is not null
        and (contract, trigger) in (select * from unnest(:contracts::text[], :facts::text[])))
