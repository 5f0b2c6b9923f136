-- Count, for each tenant, contract and type, the moves that the contract refused lately and that no legal move followed.
with clock as materialized (
    select clock_timestamp() as t
),
refused as materialized (
    select contract, tenant_id, type, at, job_id, code
    from clock, tenure.refusal
    where kind = 'state' and at >= t - :window_s::double precision * interval '1 second'
),
moved as materialized (
    select which.contract, which.tenant_id, which.type, max(last_at) as at
    from clock, (select contract, tenant_id, type from refused group by contract, tenant_id, type
                 having count(*) >= :least::bigint) as which
    join tenure.move_count as counted using (contract, tenant_id, type)
    where unit = 'minute' and start >= date_trunc('minute', t - :window_s::double precision * interval '1 second')
      and from_state <> '' and to_state <> '' and trigger not like 'refused%'
    group by which.contract, which.tenant_id, which.type
)
select refused.contract, refused.tenant_id, refused.type, count(*) as number, max(code) as code, max(job_id) as job_id
from refused left join moved using (contract, tenant_id, type)
where moved.at is null or refused.at > moved.at
group by refused.contract, refused.tenant_id, refused.type
having count(*) >= :least::bigint
order by 1, 2, 3
