-- List workers that are gone since a time, the last one first: those that stopped, and those that were not seen any more.
select name, ending, started_at, last_seen_at, gone_at, busy, host, pid, application, release, queues
from tenure.past_worker
where gone_at >= clock_timestamp() - :since_s::double precision * interval '1 second'
  and name = coalesce(:name::text, name)
order by gone_at desc
limit :limit::bigint
