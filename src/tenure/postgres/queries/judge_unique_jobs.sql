-- Judge unique jobs whose scopes this transaction has locked: return the job that is in the way, or the id of a new job.
--
-- In the way is, by mode: `waiting`: a live job of the scope that waits; `active`: one that waits or runs; `period`: the
-- last one, while its period lasts. A finished job is in the way in no other case. Live jobs are read by id; `job_done`
-- and `event` are never read. A job that waits is locked where the call replaces it, and where the caller's transaction
-- goes on (`holds`): it is claimed after that commit. The lock is taken only if the job still waits, so a claim that was
-- faster wins. Replaced is only a job that stands as it was made, in its contract's initial state: no claim has begun it,
-- and nobody has decided about it. A replacement writes one log row, which is no hop.
with call as materialized (
    select *
    from unnest(
        :tenants::text[], :types::text[], :scopes::text[], :modes::text[], :periods::bigint[], :replaces::boolean[],
        :payloads::jsonb[], :dues::timestamptz[], :delays::bigint[], :expiries::timestamptz[], :expires_ms::bigint[],
        :ids::bigint[]
    ) with ordinality
    as a (tenant_id, type, scope, mode, period_ms, replaces, payload, due_at, delay_ms, expires_at, expires_ms, id, n)
),
known as materialized (
    select call.n, call.replaces or :holds::boolean as holds, row.*
    from call
    cross join lateral (
        select job_id, made_at,
               -- A period looks at its first job alone, and only while it lasts: jobs of earlier periods may live long.
               case when call.mode <> 'period' then array_remove(earlier || job_id, null)
                    when made_at + call.period_ms * interval '1 millisecond' > clock_timestamp()
                    then array_remove(array[job_id], null) else '{}' end as ids
        from tenure.unique_job
        where contract = :contract::text and tenant_id = call.tenant_id and type = call.type and scope = call.scope
    ) as row
),
each as materialized (
    select known.n, known.holds, one.id from known cross join lateral unnest(known.ids) as one (id) order by one.id
),
live as materialized (
    select each.n, job.id, job.role in ('ready', 'waiting') and not each.holds as waits
    from each cross join lateral (select id, role from tenure.job where job.id = each.id) as job
),
locked as materialized (
    select each.n, job.*
    from each
    cross join lateral (
        select id, updated_at, role, claims = 0 and state = :initial::text and pending is null as may_change from tenure.job
        where job.id = each.id and role in ('ready', 'waiting')
        for update
    ) as job
    where each.holds
),
waits as materialized (
    select n, id from live where waits
    union all
    select n, id from locked
),
clocked as materialized (
    select known.*, clock_timestamp() as t from known where (select count(*) from locked) >= 0
),
decided as materialized (
    select clocked.n, t,
           case call.mode
               when 'period' then
                   case when made_at + call.period_ms * interval '1 millisecond' > t then clocked.job_id end
               when 'active' then coalesce((select max(id) from waits where waits.n = clocked.n),
                                           (select max(id) from live where live.n = clocked.n))
               else (select max(id) from waits where waits.n = clocked.n)
           end as first_id
    from clocked join call on call.n = clocked.n
),
replaced as (
    update tenure.job
    set payload = call.payload, seq = job.seq + 1,
        -- As at an enqueue: a job that waits for a decision has a due time only if the caller gave one.
        due_at = coalesce(call.due_at, decided.t + coalesce(call.delay_ms, case when locked.role = 'ready' then 0 end)
                                       * interval '1 millisecond'),
        expires_at = coalesce(call.expires_at, decided.t + call.expires_ms * interval '1 millisecond'),
        updated_at = greatest(decided.t, locked.updated_at + interval '1 microsecond'),
        -- This log row shows as no event. The next row that does names the one before this run as its cause.
        hidden = int4range(case when upper(job.hidden) = job.seq + 1 then lower(job.hidden) else job.seq + 1 end, job.seq + 2)
    from decided
    join call on call.n = decided.n and call.replaces
    join locked on locked.n = decided.n and locked.id = decided.first_id and locked.may_change
    where job.id = any (array[decided.first_id])
    returning job.id, job.updated_at, job.seq, job.claims, job.counter, job.max_attempts, job.contract, job.state, job.due_at
),
logged as (
    insert into tenure.event (job_id, ts, seq, hop, claims, counter, max_attempts, contract, trigger, from_state, to_state,
                              actor, facts)
    select id, updated_at, seq, false, claims, counter, max_attempts, contract, 'replaced', state, state,
           coalesce(:created_by::text, 'enqueue'), jsonb_build_object('due_at', tenure.iso(due_at))
    from replaced
),
-- Nothing is in the way: the scope belongs to the new job.
taken as (
    update tenure.unique_job
    set job_id = coalesce(call.id, nextval('tenure.job_id_seq')),
        earlier = array(select live.id from live where live.n = decided.n order by live.id), made_at = decided.t,
        until = decided.t + call.period_ms * interval '1 millisecond', check_at = decided.t + interval '1 minute'
    from decided join call on call.n = decided.n
    where decided.first_id is null and unique_job.contract = :contract::text and unique_job.tenant_id = call.tenant_id
      and unique_job.type = call.type and unique_job.scope = call.scope
    returning call.n, unique_job.job_id
)
select n, first_id as job_id, false as made from decided where first_id is not null
union all
select n, job_id, true from taken
