-- Run a dead letter again, once: insert a new job that points back to it, and let it point to the job.
with letter as materialized (
    select * from tenure.dead_letter where id = :id::bigint for update
),
inserted as (
    insert into tenure.job (
        contract, version, state, role, counter, queue, type, tenant_id, priority, max_attempts, due_at, payload,
        correlation_id, created_by, origin_letter, flow_node)
    select contract, :version::text, :state::text, :role::text, :counter::integer, queue, type, tenant_id, priority,
           max_attempts, case when :role::text = 'ready' then clock_timestamp() end, payload, correlation_id, :actor::text, id,
           :flow_node::bigint
    from letter
    where status = 'open'
    returning case when id < (select high from tenure.range order by low desc limit 1) then id
                   else nextval('tenure.no_range') end as id, origin_letter
),
closed as (
    update tenure.dead_letter
    set status = 'requeued', requeued_as = inserted.id, requeued_by = :actor::text, updated_at = clock_timestamp()
    from inserted
    where dead_letter.id = inserted.origin_letter
),
-- It reads and writes the same generations of datasets.
pinned as (
    insert into tenure.dataset_pin (job_id, dataset_id, generation_id, writes)
    select inserted.id, pin.dataset_id, pin.generation_id, pin.writes
    from letter cross join inserted cross join tenure.dataset_pin as pin
    where pin.job_id = letter.job_id
)
select letter.status, inserted.id from letter left join inserted on true
