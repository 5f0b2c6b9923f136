-- Conditions on the rows of jobs and dead letters become constraints of domains.
--
-- PostgreSQL reads and plans the CHECKs of a table again in each statement that writes to it: for a single job they cost a
-- sixth of an enqueue. A session reads the constraints of a domain once. So each table has one short CHECK, which
-- makes a row value of the columns that have conditions and casts it to a domain. The columns keep their types: no table
-- is rewritten, no index and no view changes, and prepared statements stay valid.
--
--   valid_job            priority, role, state, due time of a row of tenure.job
--   valid_finished_job   role and state of a row of tenure.job_done
--   valid_letter         reason and stage of a row of tenure.dead_letter
--
-- `tenure migrate` adds the constraints that depend on the registered contracts (job_state, job_done_state,
-- dead_letter_state). A new contract only changes domains: that locks no table and reads no row.

create type tenure.job_facts as (
    contract text,
    state    text,
    role     text,
    seq      integer,
    priority smallint,
    due_at   timestamptz
);
create domain tenure.valid_job as tenure.job_facts
    -- squawk-ignore ban-create-domain-with-constraint
    constraint job_priority_check check ((value).priority between 0 and 9)
    constraint job_role_check check ((value).role in ('ready', 'waiting', 'leased', 'active', 'settling'));

create type tenure.finished_job_facts as (
    contract text,
    state    text,
    role     text
);
create domain tenure.valid_finished_job as tenure.finished_job_facts
    -- squawk-ignore ban-create-domain-with-constraint
    constraint job_done_role_check check ((value).role = 'done');

create type tenure.letter_facts as (
    contract    text,
    reason_code text,
    stage       text
);
create domain tenure.valid_letter as tenure.letter_facts;

-- NOT VALID: all rows passed the same conditions when they were written, and to read them again could take long. A cast
-- never gives NULL here, because `contract` is not NULL; the cast itself raises the error.
alter table tenure.job
    add constraint job_valid
        check (not (row(contract, state, role, seq, priority, due_at)::tenure.valid_job is null)) not valid,
    -- squawk-ignore ban-drop-constraint
    drop constraint job_priority_check,
    -- squawk-ignore ban-drop-constraint
    drop constraint job_role_check;
alter table tenure.job_done
    add constraint job_done_valid
        check (not (row(contract, state, role)::tenure.valid_finished_job is null)) not valid,
    -- squawk-ignore ban-drop-constraint
    drop constraint job_done_role_check;
alter table tenure.dead_letter
    add constraint dead_letter_valid
        check (not (row(contract, reason_code, stage)::tenure.valid_letter is null)) not valid;
