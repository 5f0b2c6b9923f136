-- Record why these wake-ups could not be published; they are due again after 1, 2, 4… seconds, at most a minute.
update tenure.outbox
set last_error = :error::text,
    publish_at = clock_timestamp()
        + least(60, power(2, least(tries, 10) - 1)) * (0.5 + random() / 2) * interval '1 second'
where id = any (:ids::bigint[]) and published_at is null
