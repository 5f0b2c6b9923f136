-- Delete fires that are old, except the last one of each schedule.
delete from tenure.schedule_fire
where (schedule_id, fire_at) in (
    select schedule_id, fire_at
    from tenure.schedule_fire as old
    where at < (select clock_timestamp()) - :keep_sec::double precision * interval '1 second'
      and exists (select from tenure.schedule_fire as newer
                  where newer.schedule_id = old.schedule_id and newer.fire_at > old.fire_at)
    order by at
    limit :limit::bigint
    for update skip locked
)
returning 1
