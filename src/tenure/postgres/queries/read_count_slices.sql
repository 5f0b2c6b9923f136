-- Read how many jobs of each type were made, began and ended in each minute or hour since a time; of one tenant, or of all.
select counts.start, counts.contract, counts.type,
       sum(counts.number) filter (where counts.trigger in ('enqueue', 'requeue'))::bigint,
       sum(counts.number) filter (where counts.trigger in ('claim', 'reclaim'))::bigint,
       sum(counts.number) filter (where counts.ended)::bigint
from tenure.move_count as counts
where counts.unit = :unit::text and counts.trigger not like 'refused%' and counts.start >=
        date_trunc(:unit::text, clock_timestamp() - :since_s::double precision * interval '1 second', 'UTC')
  and (:tenant::text is null or counts.tenant_id = :tenant::text)
group by 1, 2, 3
order by 1
