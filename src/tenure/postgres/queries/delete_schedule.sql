-- Delete a schedule with its history.
delete from tenure.schedule where id = :id::bigint
