-- The log of each job in these spans of ids (after low, up to high): its rows as one text, the first row that is not later
-- than the one before it, and the last time. Most texts are alike, so that a log read once need not be read again.
select job_id, string_agg(told, chr(30) order by seq), min(seq) filter (where ts <= before), max(ts)
from (
    select event.job_id, event.seq, event.ts, lag(event.ts) over (partition by event.job_id order by event.seq) as before,
           concat_ws(chr(31), event.seq, event.trigger, event.from_state, event.to_state, event.claims, event.counter,
                     event.hop, event.max_attempts, event.contract) as told
    from unnest(:lows::bigint[], :highs::bigint[]) as span (low, high)
    -- offset 0: from the spans to the rows, whatever the planner thinks of their number.
    cross join lateral (
        select * from tenure.event where job_id > span.low and job_id <= span.high offset 0
    ) as event
) as row
group by job_id
order by job_id
