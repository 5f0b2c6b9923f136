-- Tell what stands still outside of the jobs: schedules, flows, datasets; and jobs that claims skip.
with clock as materialized (
    select clock_timestamp() as t
)
select 'schedules-behind' as what, name as subject, extract(epoch from t - next_at)::double precision as age_s, null::text as reason
from clock, (select name, next_at from tenure.schedule
             where paused_at is null and withdrawn_at is null and next_at is not null order by next_at limit 1) as first
where next_at < t
union all
select 'flows-behind', flow_id::text, extract(epoch from t - at)::double precision, null
from clock, (select flow_id, at from (select * from tenure.flow_end limit :limit::bigint) as few order by at limit 1) as first
union all
select 'rollback-unfinished', id::text, extract(epoch from t - at)::double precision, reason
from clock, (select id, at, reason from tenure.dataset_switch
             where kind = 'rollback' and finished_at is null order by id limit :limit::bigint) as first
union all
select 'subscription-fails', type, extract(epoch from t - created_at)::double precision, last_error
from clock, (select type, created_at, last_error from tenure.dataset_subscription
             where failures > 0 order by failures desc limit :limit::bigint) as first
union all
select 'jobs-quarantined', count(*)::text, extract(epoch from t - min(quarantined_at))::double precision, min(quarantine_reason)
from clock, (select quarantined_at, quarantine_reason from tenure.job where quarantined_at is not null limit :limit::bigint) as first
group by t
order by 1, 2
