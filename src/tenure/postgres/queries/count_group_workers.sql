-- Count the newest dead letters of a cause by the worker that held their jobs last, up to a bound; those with the most first.
select coalesce(last_owner, '') as worker, count(*) as letters, count(*) filter (where status = 'open') as open
from (
    select last_owner, letter.status
    from (
        select letter_id from tenure.dead_letter_cause
        where fingerprint = :fingerprint::text
        order by letter_id desc
        limit :bound::bigint
    ) as newest
    join tenure.dead_letter as letter on letter.id = newest.letter_id
    where letter.tenant_id = coalesce(:tenant::text, letter.tenant_id)
) as one
group by 1
order by 2 desc, 1
limit :limit::bigint
