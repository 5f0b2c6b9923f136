-- Delete workers that were not seen for some minutes and hold no lease; keep when they were last seen.
with gone as (
    delete from tenure.worker
    where not exists (select from tenure.live_worker as live where live.name = worker.name)
    returning *
)
insert into tenure.past_worker (name, started_at, last_seen_at, pid, busy, host, application, release, queues, ending)
select name, started_at, last_seen_at, pid, busy, host, application, release, queues, 'lost' from gone
on conflict (name, started_at) do update set gone_at = excluded.gone_at, last_seen_at = excluded.last_seen_at
returning name
