-- Run dead letters again, once: insert new jobs that point back to them, and let each point to its job.
--
-- The payload of the new jobs is another one, or theirs with other values at some paths, or theirs as it is.
with letter as materialized (
    select row.*
    from unnest(:ids::bigint[]) as call (id)
    cross join lateral (select * from tenure.dead_letter where dead_letter.id = call.id for update) as row
),
inserted as (
    insert into tenure.job (
        contract, version, state, role, counter, queue, type, tenant_id, priority, max_attempts, due_at, payload,
        correlation_id, created_by, origin_letter, flow_node)
    select contract, :version::text, :state::text, :role::text, :counter::integer, queue, type, tenant_id, priority,
           max_attempts, case when :role::text = 'ready' then clock_timestamp() end,
           case when :payload::text is not null then :payload::jsonb
                when :changes::text is not null then tenure.edited(payload, :changes::jsonb, :max_bytes::integer)
                else payload end,
           correlation_id, :actor::text, id, :flow_node::bigint
    from letter
    where status = 'open'
      and (payload is not null or :payload::text is not null)
    returning case when id < (select high from tenure.range order by low desc limit 1) then id
                   else nextval('tenure.no_range') end as id, origin_letter, contract, type,
                   tenant_id, queue
),
tallied as (
    insert into tenure.tally (number, contract, type, tenant_id, queue, trigger, path)
    select count(*), contract, type, tenant_id, queue, 'requeue', '>' || :state::text from inserted
    group by contract, type, tenant_id, queue
),
closed as (
    update tenure.dead_letter
    set status = 'requeued', requeued_as = inserted.id, requeued_by = :actor::text, updated_at = clock_timestamp()
    from inserted
    where dead_letter.id = any (array[inserted.origin_letter])
),
-- They read and write the same generations of datasets.
pinned as (
    insert into tenure.dataset_pin (job_id, dataset_id, generation_id, writes)
    select inserted.id, pin.dataset_id, pin.generation_id, pin.writes
    from letter join inserted on inserted.origin_letter = letter.id
    cross join lateral (select * from tenure.dataset_pin where dataset_pin.job_id = letter.job_id offset 0) as pin
)
select letter.id, letter.job_id, letter.status, inserted.id, letter.requeued_as
from letter left join inserted on inserted.origin_letter = letter.id
