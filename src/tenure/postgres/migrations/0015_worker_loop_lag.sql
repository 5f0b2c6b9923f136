-- How late the event loop of each live worker runs its callbacks.

alter table tenure.worker add column loop_lag_s double precision; -- the longest delay since the update before; NULL: not known

-- A view keeps the columns that its table had when it was made.
create or replace view tenure.live_worker with (security_invoker = true) as
select * from tenure.worker
where last_seen_at > clock_timestamp() - interval '2 minutes'
   or name in (select lease_owner from tenure.job
               where role in ('leased', 'active') and lease_expires_at >= clock_timestamp());
