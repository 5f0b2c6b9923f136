-- Publish wake-ups: which queues have a message queue, and for each wake-up its queue, its tries and its next check.

-- A queue whose wake-ups are published. A publisher that has the queue in its settings refreshes the row; a row that no
-- publisher refreshes is deleted, and its jobs are found by polling again.
create table tenure.published_queue (
    queue     text primary key,
    url       text not null, -- the message queue
    added_at  timestamptz not null default clock_timestamp(),
    seen_at   timestamptz not null default clock_timestamp(),
    -- Jobs that were made before the queue was published get their wake-ups in steps, in the order of their ids.
    filled_to bigint not null default 0,
    fill_end  bigint not null,
    -- When to begin with the first id again: for jobs whose transactions were open, or that an older release made.
    fill_again_at timestamptz not null default clock_timestamp() + interval '5 minutes'
);

-- `publish_at` is when a publisher takes the row next: when the job is due, then after a while if publishing failed.
alter table tenure.outbox
    add column queue      text not null default 'default',
    add column due_at     timestamptz, -- the first `publish_at`
    add column tries      integer not null default 0,
    add column last_error text,
    add column check_at   timestamptz; -- when to look whether the published wake-up was lost; NULL: not again

-- The indexes are made in the transaction: no queue was published before this release, so the table is empty or small.
-- squawk-ignore require-concurrent-index-deletion
drop index tenure.outbox_pending;
-- squawk-ignore require-concurrent-index-creation
create index outbox_pending on tenure.outbox (queue, publish_at, id) where published_at is null;
-- squawk-ignore require-concurrent-index-creation
create index outbox_check on tenure.outbox (check_at) where check_at is not null;
-- squawk-ignore require-concurrent-index-creation
create index outbox_published on tenure.outbox (published_at) where published_at is not null and check_at is null;
-- squawk-ignore require-concurrent-index-creation
create index outbox_job on tenure.outbox (job_id);
