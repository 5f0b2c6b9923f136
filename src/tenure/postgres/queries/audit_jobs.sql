-- Read the next jobs by id, live or finished: what their logs must agree with, and the doubts about each row alone.
--
-- A page lies within one id range, between :after and :before. It ends after :limit jobs, or where their logs have :rows
-- rows: long logs take no more memory. A job that is live and finished at once is there twice, on one page.
select id, contract, version, state, role, claims, raises, counter, max_attempts, seq, updated_at, live, doubts
from (
    select page.*, sum(seq) over (order by id) - sum(seq) over (partition by id) as before
    from (
        (select id, contract, version, state, role, claims, raises, counter, max_attempts, seq, updated_at, true as live,
                concat_ws(
                    ' ',
                    case when role in ('leased', 'active') then
                        case when num_nulls(lease_token, lease_owner, lease_expires_at) > 0 then 'unleased'
                             when not exists (select from tenure.claim where claim.key = lease_token) then 'claim'
                             when lease_owner is distinct from (
                                 select actor from tenure.event
                                 where event.job_id = job.id and event.trigger in ('claim', 'reclaim')
                                   and event.job_id > :after::bigint and event.job_id < :before::bigint
                                 order by event.seq desc limit 1) then 'holder'
                        end
                         when num_nonnulls(lease_token, lease_owner, lease_expires_at) > 0 then 'leased'
                         when role = 'waiting' and due_at is null then 'undated'
                    end,
                    case when idempotency_key is not null and not exists (
                        select from tenure.key
                        where key.tenant_id = job.tenant_id and key.key = job.idempotency_key and key.job_id = job.id)
                        then 'key' end,
                    case when origin_letter is not null and not exists (
                        select from tenure.dead_letter as letter
                        where letter.id = job.origin_letter and letter.requeued_as = job.id) then 'origin' end,
                    case when not exists (select from tenure.range where job.id >= low and job.id < high) then 'range' end,
                    case when quarantined_at is not null then 'quarantined' end,
                    case when flow_node is not null and not exists (
                        select from tenure.flow_node as node
                        where node.id = job.flow_node and node.job_id = job.id and node.state = 'started') then 'node' end
                ) as doubts
         from tenure.job
         where job.id > :after::bigint and job.id < :before::bigint
           and (:since::timestamptz is null or job.updated_at >= :since::timestamptz)
         order by job.id limit :limit::bigint)
        union all
        (select id, contract, version, state, role, claims, raises, counter, max_attempts, seq, updated_at, false,
                concat_ws(
                    ' ',
                    case when idempotency_key is not null and not exists (
                        select from tenure.key
                        where key.tenant_id = job_done.tenant_id and key.key = job_done.idempotency_key
                          and key.job_id = job_done.id) then 'key' end,
                    case when origin_letter is not null and not exists (
                        select from tenure.dead_letter as letter
                        where letter.id = job_done.origin_letter and letter.requeued_as = job_done.id) then 'origin' end,
                    -- Whether the node ended well or badly: the contract says which of them is right.
                    case when flow_node is not null then (
                        select case when node.state = 'started' then null
                                    when node.job_state is distinct from job_done.state then 'node'
                                    when node.state = 'succeeded' then 'well' else 'badly' end
                        from tenure.flow_node as node
                        where node.id = job_done.flow_node and node.job_id = job_done.id) end)
         from tenure.job_done
         where job_done.id > :after::bigint and job_done.id < :before::bigint
           and (:since::timestamptz is null or job_done.updated_at >= :since::timestamptz)
         order by job_done.id limit :limit::bigint)
        order by id
        fetch first (:limit::bigint) rows with ties
    ) as page
) as counted
where before < :rows::bigint
order by id
