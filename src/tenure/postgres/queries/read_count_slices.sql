-- Read what the jobs of each type did in each minute or hour since a time: made, begun, ended and failed, and their waits and
-- runs by bucket; of one tenant, or of all. A path of several hops counts once: :later are the hops behind the first one of
-- their path, as contract>trigger>from>to. Some triggers are failures only where they end a run, which has a duration.
-- Roll-ups are summed before they are joined with their groups.
with since as materialized (
    select date_trunc(:unit::text, clock_timestamp() - :since_s::double precision * interval '1 second', 'UTC') as at
),
kind (name, least_bucket, triggers) as (
    values ('made', -1, array['enqueue', 'requeue']), ('claimed', -1, array['claim', 'reclaim']),
           ('failed', -1, array['retry', 'exhaust', 'fatal']), ('failed', 0, array['dead_letter', 'compensation_failed'])
),
folded as materialized (
    select start, group_id, kind.name as kind, ended, bucket, sum(number) as number,
           case when kind.name is not null then concat_ws('>', trigger, from_state, to_state) end as hop
    from tenure.rollup left join kind on trigger = any (kind.triggers) and bucket >= kind.least_bucket
    where unit = :unit::text and start >= (select at from since) and (kind.name is not null or ended or bucket >= 0)
    group by start, group_id, kind.name, ended, bucket, hop
),
counts as (
    select start, contract, type, tenant_id, case when contract || '>' || hop = any (:later::text[]) then null else kind end as kind,
           ended, bucket, number
    from folded join tenure.tally_group on tally_group.id = folded.group_id
    union all
    select date_trunc(:unit::text, tally.at, 'UTC'), contract, type, tenant_id, kind.name, ended, coalesce(bucket, -1::smallint), number
    from tenure.tally left join kind on trigger = any (kind.triggers) and coalesce(bucket, -1) >= kind.least_bucket, since
    where date_trunc(:unit::text, tally.at, 'UTC') >= since.at and (kind.name is not null or ended or bucket >= 0)
)
select start, contract, type, coalesce(sum(number) filter (where kind = 'made'), 0)::bigint,
       coalesce(sum(number) filter (where kind = 'claimed'), 0)::bigint, coalesce(sum(number) filter (where ended), 0)::bigint,
       coalesce(sum(number) filter (where kind = 'failed'), 0)::bigint,
       array_agg(bucket::integer) filter (where kind = 'claimed' and bucket >= 0),
       array_agg(number::bigint) filter (where kind = 'claimed' and bucket >= 0),
       array_agg(bucket::integer) filter (where kind is distinct from 'claimed' and bucket >= 0),
       array_agg(number::bigint) filter (where kind is distinct from 'claimed' and bucket >= 0)
from counts
where (:tenant::text is null or tenant_id = :tenant::text)
group by start, contract, type
order by start
