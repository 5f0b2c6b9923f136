-- Make these generations of locked datasets current, and log it. A rollback also marks the cutover as undone, and the
-- generations that are no longer current: nothing new writes to them.
with switch as (
    insert into tenure.dataset_switch (kind, tenant_id, actor, reason, undoes)
    values (:kind::text, :tenant_id::text, :actor::text, :reason::text, :undoes::bigint)
    returning id, at
),
call as (
    select dataset_id, before_id, after_id
    from unnest(:datasets::bigint[], :before_ids::bigint[], :after_ids::bigint[]) as call (dataset_id, before_id, after_id)
),
logged as (
    insert into tenure.dataset_switched (switch_id, dataset_id, before_id, after_id)
    select switch.id, call.dataset_id, call.before_id, call.after_id from switch cross join call
),
became as (
    update tenure.dataset_generation set current_since = switch.at
    from switch cross join call
    where dataset_generation.id = any (array[call.after_id])
),
left_behind as (
    update tenure.dataset_generation set rolled_back_at = switch.at
    from switch cross join call
    where dataset_generation.id = any (array[call.before_id]) and :undoes::bigint is not null
),
undone as (
    update tenure.dataset_switch set undone_by = switch.id from switch where dataset_switch.id = :undoes::bigint
),
changed as (
    update tenure.dataset set current_id = call.after_id from call where dataset.id = any (array[call.dataset_id])
)
select id, at from switch
