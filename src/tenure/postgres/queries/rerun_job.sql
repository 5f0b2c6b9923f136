-- Run finished jobs again, once: insert new jobs like them, and link each pair. A job with a dead letter is left out.
with installation as materialized (
    -- A missing id is made of this (tenure.made_id, written out: a call for each job costs half of the statement).
    select id::text as prefix from tenure.installation
),
ended as materialized (
    select * from tenure.job_done
    where id = any (:ids::bigint[]) and not exists (select from tenure.dead_letter where job_id = any (array[job_done.id]))
),
linked as (
    insert into tenure.rerun (job_id, as_job_id, actor)
    select id, nextval('tenure.job_id_seq'), :actor::text from ended order by id
    on conflict (job_id) do nothing
    returning job_id, as_job_id
),
inserted as (
    insert into tenure.job (
        id, contract, version, state, role, counter, queue, type, tenant_id, priority, max_attempts, due_at, payload,
        correlation_id, created_by, flow_node)
    select linked.as_job_id, ended.contract, :version::text, :state::text, :role::text, :counter::integer, ended.queue,
           ended.type, ended.tenant_id, ended.priority, ended.max_attempts, case when :role::text = 'ready' then clock_timestamp() end,
           case when :payload::text is not null then :payload::jsonb
                when :changes::text is not null then tenure.edited(ended.payload, :changes::jsonb, :max_bytes::integer)
                else ended.payload end,
           coalesce(ended.correlation_id, md5((select prefix from installation) || ':' || 'correlation:' || ended.id)), :actor::text, :flow_node::bigint
    from linked join ended on ended.id = linked.job_id
    returning case when id < (select high from tenure.range order by low desc limit 1) then id
                   else nextval('tenure.no_range') end as id, contract, type, tenant_id, queue
),
tallied as (
    insert into tenure.tally (number, contract, type, tenant_id, queue, trigger, path)
    select count(*), contract, type, tenant_id, queue, 'requeue', '>' || :state::text from inserted
    group by contract, type, tenant_id, queue
),
-- They read and write the same generations of datasets.
pinned as (
    insert into tenure.dataset_pin (job_id, dataset_id, generation_id, writes)
    select inserted.id, pin.dataset_id, pin.generation_id, pin.writes
    from inserted join linked on linked.as_job_id = inserted.id
    cross join lateral (select * from tenure.dataset_pin where dataset_pin.job_id = linked.job_id offset 0) as pin
)
select inserted.id, linked.job_id from inserted join linked on linked.as_job_id = inserted.id
