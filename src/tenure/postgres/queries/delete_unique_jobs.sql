-- Delete the rows of unique scopes whose jobs have ended and whose period is over; look again later at the others.
--
-- A row is looked at when its check_at has come; a job that lives long is looked at more and more rarely. Skips rows that
-- an enqueue has locked. Returns the rows that were looked at: a full page may have a next one.
with clock as materialized (
    select clock_timestamp() as t -- a volatile time could not be looked up in the index
),
due as materialized (
    select row.* from clock cross join lateral (
        select contract, tenant_id, type, scope, job_id, earlier, made_at, until
        from tenure.unique_job
        where check_at <= clock.t
        order by check_at
        limit :limit::bigint
        for update skip locked
    ) as row
),
looked_at as materialized (
    select due.*, clock_timestamp() as t,
           exists (select from tenure.job where job.id = due.job_id)
           or exists (select from unnest(due.earlier) as one (id) join tenure.job on job.id = one.id) as lives
    from due
),
judged as materialized (
    select looked_at.*, not lives and coalesce(until, '-infinity') <= t as is_over from looked_at
),
deleted as (
    delete from tenure.unique_job using judged
    where (unique_job.contract, unique_job.tenant_id, unique_job.type, unique_job.scope)
          = (judged.contract, judged.tenant_id, judged.type, judged.scope) and judged.is_over
),
later as (
    update tenure.unique_job
    set check_at = case when judged.lives then judged.t + greatest('1 minute', least('1 hour', judged.t - judged.made_at))
                        else judged.until end
    from judged
    where (unique_job.contract, unique_job.tenant_id, unique_job.type, unique_job.scope)
          = (judged.contract, judged.tenant_id, judged.type, judged.scope) and not judged.is_over
)
select is_over from judged
