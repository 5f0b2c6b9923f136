-- Read the log of each job between :after and :before: its rows as one text, the first row that is not later than the one
-- before it, and the last time. Most texts are alike, so that a log read once need not be read again.
select job_id, string_agg(line, chr(30) order by seq), min(seq) filter (where ts <= before), max(ts)
from (
    select job_id, seq, ts, lag(ts) over (partition by job_id order by seq) as before,
           concat_ws(chr(31), seq, trigger, from_state, to_state, claims, counter, hop, max_attempts, contract) as line
    from tenure.event
    where job_id > :after::bigint and job_id < :before::bigint
      and (:ids::bigint[] is null or job_id = any (:ids::bigint[]))
) as row
group by job_id
order by job_id
