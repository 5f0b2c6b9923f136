-- Read the counts of a unit since a time, by contract, type, tenant, hop and bucket; of one tenant, or of all.
-- `first` orders the groups as they were first counted; those that are not folded yet come last.
select counts.contract, counts.type, counts.tenant_id, counts.trigger, counts.from_state, counts.to_state, counts.bucket,
       sum(counts.number)::bigint, sum(counts.seconds)
from tenure.move_count as counts
where counts.unit = :unit::text and counts.start >= coalesce(
        date_trunc(:unit::text, clock_timestamp() - :since_s::double precision * interval '1 second', 'UTC'), '-infinity')
  and (:tenant::text is null or counts.tenant_id = :tenant::text)
group by 1, 2, 3, 4, 5, 6, 7
