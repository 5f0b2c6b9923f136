-- Notify listeners of new work: one notification for each name, delivered when this transaction commits.
-- No row, and no notification, when the queue of notifications is half full: the commit would fail on a full one. Asking
-- how full it is also lets PostgreSQL see what was read meanwhile, which nothing else does once it is full.
select pg_notify('tenure', name) from unnest(:names::text[]) as name where pg_notification_queue_usage() < 0.5
