-- Change how many former generations of a locked dataset stay.
update tenure.dataset set keep = :keep::integer where id = :id::bigint and keep is distinct from :keep::integer returning id
