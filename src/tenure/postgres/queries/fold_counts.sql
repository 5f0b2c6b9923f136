-- Fold counts of moves into the roll-ups by minute, by hour and for ever; return how many were folded.
--
-- A count is deleted and added in this one statement, so none is lost or added twice. One process folds at a time; another
-- finds the lock taken and folds nothing. Beyond :groups groups (contract, type, tenant, queue), new ones count as one.
with mine as materialized (
    select pg_try_advisory_xact_lock(hashtextextended('tenure.fold_counts', 0)) as is_mine
),
taken as (
    delete from tenure.tally
    where ctid = any (array(select tally.ctid from mine, tenure.tally where is_mine limit :limit::bigint))
    returning at, seconds, number, bucket, ended, contract, type, tenant_id, queue, trigger, path
),
met as materialized (
    select contract, type, tenant_id, queue from taken group by contract, type, tenant_id, queue
),
known as materialized (
    select met.*, tally_group.id,
           (select count(*) from tenure.tally_group)
               + row_number() over (partition by tally_group.id is null order by met.contract, met.type, met.tenant_id, met.queue)
               as place
    from met left join tenure.tally_group
        on (tally_group.contract, tally_group.type, tally_group.tenant_id, tally_group.queue)
         = (met.contract, met.type, met.tenant_id, met.queue)
),
named as materialized (
    select contract, type, tenant_id, queue, id, case when is_other then '(other)' else type end as shown_type,
           case when is_other then '(other)' else tenant_id end as shown_tenant,
           case when is_other then '(other)' else queue end as shown_queue
    from (select *, id is null and place > :groups::bigint as is_other from known) as judged
),
made as (
    insert into tenure.tally_group (contract, type, tenant_id, queue)
    select contract, shown_type, shown_tenant, shown_queue from named where id is null
    group by contract, shown_type, shown_tenant, shown_queue
    -- Only the group of all others may be there already; this update returns it.
    on conflict (contract, type, tenant_id, queue) do update set since = tally_group.since
    returning id, contract, type, tenant_id, queue
),
counted as materialized (
    select coalesce(named.id, made.id) as group_id, taken.at, taken.seconds, taken.number, taken.bucket, taken.ended, taken.trigger,
           taken.path
    from taken
    join named on (named.contract, named.type, named.tenant_id, named.queue)
                = (taken.contract, taken.type, taken.tenant_id, taken.queue)
    left join made on named.id is null and (made.contract, made.type, made.tenant_id, made.queue)
                = (named.contract, named.shown_type, named.shown_tenant, named.shown_queue)
),
by_minute as materialized (
    select date_trunc('minute', at, 'UTC') as start, max(at) as last_at, sum(coalesce(seconds, 0)) as seconds,
           sum(number) as number, group_id, coalesce(bucket, -1) as bucket, ended, trigger, path
    from counted
    group by 1, group_id, 6, ended, trigger, path
),
by_hop as materialized (
    select start, last_at, case when k = 1 then seconds else 0 end as seconds, number, group_id,
           case when k = 1 then bucket else -1 end as bucket, trigger, states[k] as from_state, states[k + 1] as to_state,
           ended and k = cardinality(states) - 1 as ended
    from by_minute
    cross join lateral string_to_array(path, '>') as states
    cross join lateral generate_series(1, cardinality(states) - 1) as k
),
added as (
    insert into tenure.rollup (start, last_at, seconds, number, group_id, bucket, ended, unit, trigger, from_state, to_state)
    select case each.unit when 'ever' then timestamptz '-infinity' else date_trunc(each.unit, start, 'UTC') end, max(last_at),
           sum(seconds), sum(number), group_id, bucket, ended, each.unit, trigger, from_state, to_state
    from by_hop cross join (values ('minute'), ('hour'), ('ever')) as each (unit)
    group by each.unit, 1, group_id, trigger, from_state, to_state, ended, bucket
    order by each.unit, 1, group_id, trigger, from_state, to_state, ended, bucket
    on conflict (unit, start, group_id, trigger, from_state, to_state, ended, bucket) do update
    set number = rollup.number + excluded.number, seconds = rollup.seconds + excluded.seconds,
        last_at = greatest(rollup.last_at, excluded.last_at)
)
select is_mine, (select count(*) from taken) from mine
