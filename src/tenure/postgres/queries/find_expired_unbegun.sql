-- Lock jobs that expired before they began. Skips locked rows: another process claims, changes or cancels them; and jobs
-- in quarantine, which cannot be logged.
-- The clock is read once, in a step of its own: compared with a volatile time, the index would be read to its end.
with clock as materialized (
    select clock_timestamp() as t
)
select found.id
from clock cross join lateral (
    select id
    from tenure.job
    where expires_at <= clock.t and role in ('ready', 'waiting') and claims = 0 and quarantined_at is null
      and contract = :contract::text and version = :version::text
      and (:units::bigint[] is null or id / 1048576 = any (:units::bigint[]))
      and (:ids::bigint[] is null or id = any (:ids::bigint[]))
    order by expires_at, id
    limit :limit::bigint
    for update skip locked
) as found
