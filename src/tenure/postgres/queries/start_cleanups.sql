-- Start the clean-up nodes of these flows; the columns of count_down_parents.sql.
update tenure.flow_node set state = 'started', started_at = clock_timestamp()
where flow_id = any (:ids::bigint[]) and is_cleanup and state = 'waiting'
returning id, flow_id, false, coalesce(pg_column_size(payload), 0)
