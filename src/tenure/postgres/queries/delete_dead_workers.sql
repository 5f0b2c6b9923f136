-- Delete workers that were not seen for some minutes and hold no lease.
delete from tenure.worker
where not exists (select from tenure.live_worker as live where live.name = worker.name)
returning name
