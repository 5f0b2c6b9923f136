-- Run a dead letter again: make a new job that points back to it, and let it point to the job; once.
with letter as materialized (
    select * from tenure.dead_letter where id = :id::bigint for update
),
made as (
    insert into tenure.job (
        contract, version, state, role, counter, queue, type, tenant_id, priority, max_attempts, due_at, payload,
        correlation_id, created_by, origin_letter)
    select contract, :version::text, :state::text, 'ready', :counter::integer, queue, type, tenant_id, priority,
           max_attempts, clock_timestamp(), payload, correlation_id, :actor::text, id
    from letter
    where status = 'open'
    returning id, origin_letter
),
closed as (
    update tenure.dead_letter
    set status = 'requeued', requeued_as = made.id, requeued_by = :actor::text, updated_at = clock_timestamp()
    from made
    where dead_letter.id = made.origin_letter
)
select letter.status, made.id from letter left join made on true
