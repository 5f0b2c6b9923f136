-- Who holds jobs now, how many, since when, and when were they last heard of?
select lease_owner, count(*), min(started_at), max(last_heartbeat_at), max(lease_expires_at)
from tenure.job
where role in ('leased', 'active') and lease_owner is not null
group by lease_owner
order by lease_owner
limit :limit::bigint
