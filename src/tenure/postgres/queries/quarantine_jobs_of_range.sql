-- Leave ready jobs with ids from :low to before :high out of claims: no part of the log takes these ids. Skips locked rows.
update tenure.job set quarantined_at = clock_timestamp(), quarantine_reason = :reason::text
where id = any (array(
    select id from tenure.job
    where id >= :low::bigint and id < :high::bigint and role = 'ready' and quarantined_at is null
    order by id
    limit :limit::bigint
    for update skip locked))
returning id
