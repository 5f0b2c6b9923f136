-- Delete the row of a worker that stops, unless another process has taken its name; keep when it stopped.
-- A worker behind a dispatcher does not delete the row of a worker that has its own database connection.
with gone as (
    delete from tenure.worker
    where name = :name::text and pid is not distinct from :pid::integer and host is not distinct from :host::text
      and (through is null) = (:through::text is null)
    returning *
)
insert into tenure.past_worker (name, started_at, last_seen_at, pid, busy, host, application, release, queues, ending)
select name, started_at, last_seen_at, pid, busy, host, application, release, queues, 'stopped' from gone
on conflict (name, started_at) do nothing
