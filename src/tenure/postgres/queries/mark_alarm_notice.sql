-- Record how sending a notice went: sent, or why not and when to try again.
update tenure.alarm_notice
set sent_at = case when :error::text is null then clock_timestamp() end, error = :error::text,
    next_at = clock_timestamp() + :wait_s::double precision * interval '1 second'
where alarm_id = :id::bigint and change = :change::text and sink = :sink::text
