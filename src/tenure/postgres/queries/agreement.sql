-- Does every job's row agree with its log, and every log with itself?
with row as (
    select id, state, seq, claims, counter from tenure.job
    union all
    select id, state, seq, claims, counter from tenure.job_done
),
hop as (
    select job_id, seq, to_state, claims, counter, ts,
           row_number() over w as n,
           lag(to_state) over w is distinct from from_state and lag(seq) over w is not null as broken,
           lag(ts) over w >= ts as backwards,
           lead(seq) over w is null as last
    from tenure.event
    where hop
    window w as (partition by job_id order by seq)
)
select (select count(*) from row) as jobs,
       (select count(*) from hop) as hops,
       (select count(*) from hop where broken or backwards) as broken,
       (select count(*) from row left join hop on hop.job_id = row.id and hop.last
        where (row.claims > 0 or row.seq > 0)
          and (hop.to_state, hop.claims, hop.counter) is distinct from (row.state, row.claims, row.counter)) as disagreeing
