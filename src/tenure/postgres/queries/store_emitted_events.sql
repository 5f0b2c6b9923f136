-- Store the events that a holder reported with its completion, once per claim.
insert into tenure.emitted (job_id, claims, body)
select :id::bigint, :claims::integer, body from unnest(:bodies::jsonb[]) with ordinality as reported (body, n)
where not exists (select from tenure.emitted where job_id = :id::bigint and claims = :claims::integer)
order by n
