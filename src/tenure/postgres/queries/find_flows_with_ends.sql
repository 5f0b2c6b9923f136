-- Find those of these flows that have ended jobs which are not taken into account yet.
select id from unnest(:ids::bigint[]) as flow (id)
where exists (select from tenure.flow_end where flow_id = any (array[flow.id]))
