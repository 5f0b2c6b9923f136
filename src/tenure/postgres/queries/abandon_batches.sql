-- Find staged rows of attempts that ended without them: nobody reads them.
update tenure.dataset_batch as batch
set state = 'unread', unread_since = clock_timestamp()
where batch.state = 'staged' and batch.id = any (array(
    select staged.id
    from tenure.dataset_batch as staged
    where staged.state = 'staged' and not exists (
        select from tenure.job
        where job.id = staged.job_id and job.claims = staged.claims and job.role in ('leased', 'active'))
    order by staged.created_at
    limit :limit::bigint))
returning id
