-- Record what happened at these fire times of a locked schedule, and which fire time is next.
with recorded as (
    insert into tenure.schedule_fire (schedule_id, fire_at, last_at, at, times, job_id, result, reason, by_hand)
    select :schedule_id::bigint, fire_at, last_at, :now::timestamptz, times, job_id, result, reason, :by_hand::boolean
    from unnest(:fire_ats::timestamptz[], :last_ats::timestamptz[], :times::integer[], :job_ids::bigint[],
                :results::text[], :reasons::text[])
        as fire (fire_at, last_at, times, job_id, result, reason)
)
update tenure.schedule
set fire_at = :fire_at::timestamptz, next_at = :next_at::timestamptz,
    last_job_id = coalesce(:last_job_id::bigint, last_job_id), updated_at = clock_timestamp()
where id = :schedule_id::bigint
