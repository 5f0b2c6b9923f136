-- Read what the jobs of each type did in each minute or hour since a time: made, begun, ended and failed, and their waits and
-- runs by bucket; of one tenant, or of all. A failure is counted with its first hop, which has the duration of its run.
-- Roll-ups are summed before they are joined with their groups.
with since as materialized (
    select date_trunc(:unit::text, clock_timestamp() - :since_s::double precision * interval '1 second', 'UTC') as at
),
kind (name, triggers) as (
    values ('made', array['enqueue', 'requeue']), ('claimed', array['claim', 'reclaim']), ('failed', array['retry', 'exhaust', 'fatal'])
),
folded as materialized (
    select start, group_id, kind.name as kind, ended, bucket, sum(number) as number
    from tenure.rollup left join kind on trigger = any (kind.triggers)
    where unit = :unit::text and start >= (select at from since) and (kind.name is not null or ended or bucket >= 0)
    group by start, group_id, kind.name, ended, bucket
),
counts as (
    select start, contract, type, tenant_id, kind, ended, bucket, number
    from folded join tenure.tally_group on tally_group.id = folded.group_id
    union all
    select date_trunc(:unit::text, tally.at, 'UTC'), contract, type, tenant_id, kind.name, ended, coalesce(bucket, -1::smallint), number
    from tenure.tally left join kind on trigger = any (kind.triggers), since
    where date_trunc(:unit::text, tally.at, 'UTC') >= since.at and (kind.name is not null or ended or bucket >= 0)
)
select start, contract, type, coalesce(sum(number) filter (where kind = 'made'), 0)::bigint,
       coalesce(sum(number) filter (where kind = 'claimed'), 0)::bigint, coalesce(sum(number) filter (where ended), 0)::bigint,
       coalesce(sum(number) filter (where kind = 'failed' and bucket >= 0), 0)::bigint,
       array_agg(bucket::integer) filter (where kind = 'claimed' and bucket >= 0),
       array_agg(number::bigint) filter (where kind = 'claimed' and bucket >= 0),
       array_agg(bucket::integer) filter (where kind is distinct from 'claimed' and bucket >= 0),
       array_agg(number::bigint) filter (where kind is distinct from 'claimed' and bucket >= 0)
from counts
where (:tenant::text is null or tenant_id = :tenant::text)
group by start, contract, type
order by start
