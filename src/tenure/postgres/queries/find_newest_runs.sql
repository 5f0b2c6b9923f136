-- Find the newest of the jobs that ran each of these again, each the one before it; the job itself if there is none.
with recursive run as (
    select id as job_id, id as newest from unnest(:ids::bigint[]) as call (id)
    union all
    select run.job_id, coalesce(rerun.as_job_id, letter.requeued_as)
    from run
    -- The offsets keep the planner from reading all rows instead of looking up each of these.
    left join lateral (select as_job_id from tenure.rerun where rerun.job_id = run.newest offset 0) as rerun on true
    left join lateral (
        select requeued_as from tenure.dead_letter
        where dead_letter.job_id = run.newest and requeued_as is not null
        offset 0
    ) as letter on true
    where rerun.as_job_id is not null or letter.requeued_as is not null
)
-- A job that runs another one again has the higher id.
select job_id, max(newest) from run group by job_id
