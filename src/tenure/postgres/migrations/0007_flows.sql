-- Flows: jobs that start in the order of their dependencies.
--
--   flow           one row for each flow; whoever advances, cancels or resumes a flow locks its row
--   flow_node      the nodes, with the jobs that they become
--   flow_end       jobs of flows that have ended and are not taken into account yet
--   job.flow_node  the node that a job runs; NULL: the job is in no flow

create table tenure.flow (
    id          bigint generated always as identity primary key,
    created_at  timestamptz not null default clock_timestamp(),
    ended_at    timestamptz,
    first_id    bigint not null, -- the ids of its nodes and jobs are within first_id and last_id
    last_id     bigint not null,
    nodes       integer not null,
    open        integer not null, -- nodes that have not ended
    cleanups    integer not null, -- clean-up nodes among them that wait
    failed      integer not null default 0, -- nodes that ended badly: failed or cancelled
    tolerated   integer not null default 0, -- those of them with the policy `continue`
    name        text not null,
    tenant_id   text not null,
    state       text not null default 'running'
                check (state in ('running', 'cancelling', 'succeeded', 'failed', 'cancelled')),
    on_failure  text not null check (on_failure in ('stop', 'skip', 'continue')),
    key         text,
    fingerprint text, -- with a key, a hash of the flow: a repeat of the key must have the same one
    created_by  text,
    check ((ended_at is null) = (state in ('running', 'cancelling')))
) with (fillfactor = 70);
create unique index flow_key on tenure.flow (tenant_id, key) where key is not null;
create index flow_open on tenure.flow (id) where ended_at is null;
create index flow_ended on tenure.flow (ended_at) where ended_at is not null;
create index flow_name on tenure.flow (name, id);

-- A node's id is the id of its first job, which is reserved when the flow is created; a mapped node has no job. Nodes are
-- ordered by id: each stands behind its parents. The two arrays are the dependencies, once in each direction; wide ones are
-- stored out of line, so that counting down `open` does not copy them.
create table tenure.flow_node (
    id          bigint primary key,
    flow_id     bigint not null,
    job_id      bigint, -- the job that runs it, or will; after a resume or a requeue another one than at first
    part_of     bigint, -- the mapped node that a member belongs to
    started_at  timestamptz,
    finished_at timestamptz,
    open        integer not null, -- waiting: parents that must still end; a started mapped node: members that have not ended
    place       integer, -- of a member, from 0
    is_cleanup  boolean not null default false,
    feeds       boolean not null default false, -- its result is an input of another node
    name        text not null,
    state       text not null check (state in ('waiting', 'started', 'succeeded', 'failed', 'cancelled', 'skipped')),
    on_failure  text check (on_failure in ('stop', 'skip', 'continue')), -- NULL: as the flow has it
    "each"      text, -- of a mapped node: the input whose list it maps
    contract    text not null,
    queue       text not null,
    type        text not null,
    job_state   text, -- the state in which its job ended
    error       text, -- why it could not be started
    parents     bigint[] not null default '{}',
    children    bigint[] not null default '{}',
    inputs      jsonb, -- argument -> the id of the parent whose result it becomes, or the ids of several
    payload     jsonb, -- of its job, without the inputs; NULL: a member, which has that of its mapped node
    options     jsonb, -- the other values of its job that are not the usual ones
    result      jsonb  -- only if it feeds another node
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
-- Not with the id: a plan that was made while the table was empty could walk all of such an index for each id.
create index flow_node_flow on tenure.flow_node (flow_id);
create index flow_node_member on tenure.flow_node (part_of, place) where part_of is not null;
create index flow_node_job on tenure.flow_node (job_id) where job_id <> id;

-- The statement that ends a job of a flow writes this row; the transaction that advances the flow deletes it.
create table tenure.flow_end (
    flow_id bigint not null,
    job_id  bigint not null,
    node    bigint not null,
    at      timestamptz not null,
    outcome text not null check (outcome in ('succeeded', 'failed', 'cancelled')),
    state   text not null, -- of the job
    result  jsonb,         -- only if the node feeds another one
    primary key (flow_id, job_id)
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);

-- Both tables keep the same columns: processes of the release before this one read them with `select *`.
alter table tenure.job add column flow_node bigint;
alter table tenure.job_done add column flow_node bigint;

-- A database with separate roles: its app goes on without `tenure migrate --grants`.
do $$
begin
    if exists (select from pg_namespace where nspname = 'tenure' and nspowner = to_regrole('tenure_owner')) then
        grant insert, update, delete on tenure.flow, tenure.flow_node, tenure.flow_end to tenure_app;
    end if;
end
$$;
