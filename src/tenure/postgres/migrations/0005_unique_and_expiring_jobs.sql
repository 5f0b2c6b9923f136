-- Unique jobs, and jobs that expire before they begin.
--
--   unique_job       the job that was last made for a unique scope; an enqueue of a unique job locks this row
--   job.expires_at   when a job that has not begun is cancelled; the first claim sets it to NULL

-- Only enqueues of unique jobs and upkeep touch this table: no claim and no finish does. A row outlives its jobs until
-- upkeep deletes it, or until the next enqueue takes it over.
create table tenure.unique_job (
    contract  text not null,
    tenant_id text not null,
    type      text not null,
    scope     text not null, -- a hash of the arguments that make the job unique
    job_id    bigint,        -- the job that was made last; NULL only inside of the enqueue that inserts the row
    earlier   bigint[] not null default '{}', -- unique jobs of this scope that lived when the last one was made
    made_at   timestamptz not null default clock_timestamp(), -- when the last one was made: a period begins here
    until     timestamptz,   -- the end of that period; NULL: the row is needed only while one of its jobs lives
    check_at  timestamptz not null default clock_timestamp() + interval '1 minute', -- upkeep looks at the row then
    primary key (contract, tenant_id, type, scope)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
create index unique_job_check on tenure.unique_job (check_at);

-- Both tables keep the same columns: processes of the release before this one read them with `select *`.
alter table tenure.job add column expires_at timestamptz;
alter table tenure.job_done add column expires_at timestamptz;
-- Jobs without an expiry have no entry, and a job that was claimed has none either.
-- squawk-ignore require-concurrent-index-creation
create index job_expiring on tenure.job (expires_at) where expires_at is not null and role in ('ready', 'waiting');

-- Whether a job has expired at time `t`. A job that was claimed once has begun: it does not expire any more.
create function tenure.is_expired(expires_at timestamptz, claims integer, t timestamptz) returns boolean
    language sql immutable parallel safe
    return coalesce(expires_at <= t and claims = 0, false);
