-- Delete claim keys that are old and under which no job is held.
delete from tenure.claim
where key in (
    select key
    from tenure.claim
    where at < clock_timestamp() - :keep_sec::double precision * interval '1 second'
      and key not in (
          select lease_token from tenure.job
          where role in ('leased', 'active', 'settling') and lease_token is not null)
    order by at
    limit :limit::bigint
    for update skip locked
)
returning key
