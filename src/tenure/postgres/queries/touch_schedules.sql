-- Note that a starting worker declares these schedules as they are stored; return the names of those.
--
-- Until the worker has its row in tenure.worker, withdraw_schedules.sql goes by this time. Rows are locked in the order of
-- their ids, as in withdraw_schedules.sql.
with given as materialized (
    select key as name, value as fingerprint from jsonb_each_text(:fingerprints::jsonb)
),
stored as materialized (
    select schedule.id, schedule.name, schedule.declared_at
    from given join tenure.schedule using (name, fingerprint)
    where application = :application::text and in_code and withdrawn_at is null
),
locked as materialized (
    select id from tenure.schedule
    where id in (select id from stored where declared_at < clock_timestamp() - interval '10 seconds')
    order by id
    for update
),
touched as (
    update tenure.schedule set declared_at = clock_timestamp() where id in (select id from locked)
)
select name from stored
