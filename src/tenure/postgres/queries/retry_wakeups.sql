-- Make wake-ups due now that could not be published: these, or all of a queue, or all.
update tenure.outbox
set publish_at = clock_timestamp(), tries = 0
where published_at is null and tries > 0 and coalesce(due_at, created_at) <= clock_timestamp()
  and (:ids::bigint[] is null or id = any (:ids::bigint[]))
  and (:queue::text is null or queue = :queue::text)
returning id
