-- Run a finished job again, once: insert a new job like it, and link the two.
with ended as materialized (
    select * from tenure.job_done
    where id = :id::bigint and not exists (select from tenure.dead_letter where job_id = :id::bigint)
),
linked as (
    insert into tenure.rerun (job_id, as_job_id, actor)
    select id, nextval('tenure.job_id_seq'), :actor::text from ended
    on conflict (job_id) do nothing
    returning job_id, as_job_id
),
inserted as (
    insert into tenure.job (
        id, contract, version, state, role, counter, queue, type, tenant_id, priority, max_attempts, due_at, payload,
        correlation_id, created_by, flow_node)
    select linked.as_job_id, ended.contract, :version::text, :state::text, :role::text, :counter::integer, ended.queue,
           ended.type, ended.tenant_id, ended.priority, ended.max_attempts, case when :role::text = 'ready' then clock_timestamp() end,
           ended.payload,
           coalesce(ended.correlation_id, tenure.made_id('correlation', ended.id)), :actor::text, :flow_node::bigint
    from linked join ended on ended.id = linked.job_id
    returning case when id < (select high from tenure.range order by low desc limit 1) then id
                   else nextval('tenure.no_range') end as id
),
-- It reads and writes the same generations of datasets.
pinned as (
    insert into tenure.dataset_pin (job_id, dataset_id, generation_id, writes)
    select inserted.id, pin.dataset_id, pin.generation_id, pin.writes
    from inserted cross join tenure.dataset_pin as pin
    where pin.job_id = :id::bigint
)
select id from inserted
