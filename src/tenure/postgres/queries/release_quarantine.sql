-- Let claims try jobs again that were quarantined some minutes ago; those that still cannot be logged are quarantined anew.
update tenure.job set quarantined_at = null, quarantine_reason = null
where id = any (array(
    select id from tenure.job
    where quarantined_at < clock_timestamp() - :after_s::double precision * interval '1 second'
    limit :limit::bigint
    for update skip locked))
returning id
