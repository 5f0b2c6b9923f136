-- Store these refusals with their times, and count them, and others without a time, as moves are counted.
-- Ages are seconds of the caller's clock.
with clock as materialized (
    select clock_timestamp() as t
),
stored as (
    insert into tenure.refusal (at, job_id, contract, type, tenant_id, queue, verb, code, kind)
    select t - age * interval '1 second', id, contract, type, tenant_id, queue, verb, code, kind
    from clock, unnest(
        :ids::bigint[], :ages::double precision[], :contracts::text[], :types::text[], :tenants::text[], :queues::text[],
        :verbs::text[], :codes::text[], :kinds::text[]
    ) as one (id, age, contract, type, tenant_id, queue, verb, code, kind)
)
insert into tenure.tally (at, number, contract, type, tenant_id, queue, trigger, path)
select t - age * interval '1 second', number, contract, type, tenant_id, queue, 'refused_' || kind, verb || '>' || code
from clock, unnest(
    :counts::integer[], :newest::double precision[], :group_contracts::text[], :group_types::text[], :group_tenants::text[],
    :group_queues::text[], :group_kinds::text[], :group_verbs::text[], :group_codes::text[]
) as one (number, age, contract, type, tenant_id, queue, kind, verb, code)
