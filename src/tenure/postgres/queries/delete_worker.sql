-- Delete the row of a worker that stops, unless another process has taken its name.
-- A worker behind a dispatcher does not delete the row of a worker that has its own database connection.
delete from tenure.worker
where name = :name::text and pid is not distinct from :pid::integer and host is not distinct from :host::text
  and (through is null) = (:through::text is null)
