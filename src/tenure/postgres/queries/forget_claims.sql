-- Which claim keys are old and hold nothing any more?
delete from tenure.claim
where key in (
    select key
    from tenure.claim
    where at < clock_timestamp() - :keep_sec::double precision * interval '1 second'
      and not exists (
          select from tenure.job
          where job.role in ('leased', 'active', 'settling') and job.lease_token = claim.key)
    order by at
    limit :limit::bigint
    for update skip locked
)
returning key
