-- Find the nodes of these flows that cannot be as they are, each with its doubts.
-- A parent whose failure lets its children start may be resumed after them; it says nothing about when they started.
select id, job_id, flow_id, name, state, doubts
from (
    select node.id, node.job_id, node.flow_id, node.name, node.state,
           concat_ws(
               ' ',
               case when node.state = 'waiting' and not node.is_cleanup then
                   case when parent.blocked then 'blocked'
                        when node.open is distinct from parent.open then 'parents'
                        when node.open = 0 then 'ready' end
                    when (node.state = 'started' or node.started_at is not null) and not node.is_cleanup
                        and (parent.blocked or parent.unended or node.started_at < parent.last) then 'early'
               end,
               case when node."each" is not null and node.state = 'started' then
                   case when node.open <> member.open then 'members' when node.open = 0 then 'whole' end
                    when member.open > 0 then 'members'
               end,
               case when node."each" is null and node.state = 'started' then
                   case when live.id is null and ending.job_id is null then 'jobless'
                        when live.id is not null and ending.job_id is not null then 'both' end
               end,
               case when (node.finished_at is null) <> (node.state in ('waiting', 'started'))
                       or node.started_at is null and node.state in ('started', 'succeeded') then 'times' end
           ) as doubts
    from tenure.flow
    join tenure.flow_node as node on node.flow_id = flow.id
    cross join lateral (
        select count(*) filter (where one.state in ('waiting', 'started')) as open,
               bool_or(one.state in ('waiting', 'started') and not one.may_be_late) as unended,
               bool_or(one.state = 'skipped' or one.state in ('failed', 'cancelled') and one.policy <> 'continue') as blocked,
               max(one.finished_at) filter (where not one.may_be_late) as last
        from (
            select state, finished_at, coalesce(on_failure, flow.on_failure) as policy,
                   coalesce(on_failure, flow.on_failure) = 'continue' and job_id is distinct from id as may_be_late
            from tenure.flow_node
            where id = any (node.parents)
        ) as one
    ) as parent
    left join lateral (
        select count(*) filter (where one.state = 'started') as open
        from tenure.flow_node as one
        where one.part_of = node.id
    ) as member on node."each" is not null
    left join tenure.job as live on live.id = node.job_id and live.flow_node = node.id and node.state = 'started'
    left join tenure.flow_end as ending
        on ending.flow_id = flow.id and ending.job_id = node.job_id and ending.node = node.id and node.state = 'started'
    where flow.id = any (:ids::bigint[])
) as audited
where doubts <> ''
order by id
