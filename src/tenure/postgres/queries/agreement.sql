-- Does every job's row agree with its log, and every log with itself?
with row as (
    select id, state, seq, claims, counter from tenure.job
    union all
    select id, state, seq, claims, counter from tenure.job_done
),
logged as (
    select job_id, seq, hop, to_state, claims, counter,
           row_number() over w as n,
           hop and lag(to_state) over w is distinct from from_state and lag(seq) over w is not null as unlinked,
           lag(ts) over w >= ts as backwards,
           lead(seq) over w is null as last
    from tenure.event
    window w as (partition by job_id order by seq)
)
select (select count(*) from row) as jobs,
       (select count(*) from logged) as logged,
       (select count(*) from logged where unlinked or backwards or n <> seq) as broken,
       (select count(*) from row left join logged on logged.job_id = row.id and logged.last
        where row.seq > 0 and (logged.seq, logged.to_state, logged.claims, logged.counter)
                              is distinct from (row.seq, row.state, row.claims, row.counter)) as disagreeing
