-- Find flows with ended jobs that are not taken into account yet.
select distinct flow_id from (select flow_id from tenure.flow_end limit 10000) as ended limit :limit::bigint
