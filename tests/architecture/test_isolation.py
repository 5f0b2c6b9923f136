"""A test finds its database as migrate left it, whatever the tests before it did to theirs.

Databases are lent to one test after another. What is shown here is shown within one test each, because two tests of a
file need not run in one process, nor in the order in which they are written.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest
from psycopg.rows import tuple_row

from tenure.contracts import BUILT_IN
from tenure.embedded import find_binaries
from tenure.postgres.migrate import migrate
from tests.conftest import Databases, Look, own_database
from tests.harness import Harness

# A row in every table that is empty after migrate, more than a page of jobs, and rows that nobody ever saw.
_ROWS = """
insert into tenure.job (contract, version, state, role, type, max_attempts, payload)
    select 'standard', '1', 'queued', 'ready', 't', 1, jsonb_build_object('n', n) from generate_series(1, 2000) as n;
insert into tenure.job_done (id, contract, version, state, role, type, max_attempts)
    select n * 1048576 + 1, 'standard', '1', 'dead', 'done', 't', 1 from generate_series(0, 4) as n;
insert into tenure.event (job_id, ts, seq, claims, counter, max_attempts, contract, trigger, from_state, to_state,
                          actor)
    select n * 1048576 + 1, now(), 1, 1, 1, 1, 'standard', 'claim', 'queued', 'running', 'w'
    from generate_series(0, 4) as n;
insert into tenure.claim (key) values (gen_random_uuid());
insert into tenure.key (tenant_id, key, verb, hash) values ('default', 'k', 'enqueue', 'h');
insert into tenure.dead_letter (job_id, contract, tenant_id, type, reason_code, last_error, counter, claims,
                                correlation_id, trace_id, failed_at)
    values (1, 'standard', 'default', 't', 'r', '{}', 1, 1, 'c', 't', now());
insert into tenure.dead_letter_group (letters, open, first_seen, last_seen, last_letter, fingerprint, contract,
                                      tenant_id, type, release, reason_code, error_type, message)
    values (1, 1, now(), now(), 1, 'f', 'standard', 'default', 't', '', 'r', 'e', 'm');
insert into tenure.dead_letter_cause (letter_id, group_id, status, fingerprint) values (1, 1, 'open', 'f');
insert into tenure.operation (of_letters, verb, query, created_by) values (false, 'cancel', '', 'a');
insert into tenure.operation_item (operation_id, item_id, seen) values (1, 1, 's');
insert into tenure.operation_batch (operation_id, done, skipped) values (1, 1, '{}');
insert into tenure.effect (job_id, node, claims, at) values (1, 'n', 1, now());
insert into tenure.outbox (job_id, contract) values (1, 'standard');
insert into tenure.published_queue (queue, url, fill_end) values ('q', 'https://queue.example/1', 0);
insert into tenure.job_type (contract, type) values ('standard', 't');
insert into tenure.queue (name) values ('q');
insert into tenure.api_key (name, hash, hint, scopes, created_by) values ('k', sha256('k'), 't', '{work}', 'a');
insert into tenure.dashboard_session (token_hash, key_hash, expires_at) values (sha256('t'), sha256('k'), now());
insert into tenure.emitted (job_id, claims, body) values (1, 1, '{}');
insert into tenure.worker (name, queues, contracts) values ('w', '{q}', '{standard}');
insert into tenure.past_worker (name, queues, busy, ending, started_at, last_seen_at)
    values ('w', '{q}', 0, 'stopped', now(), now());
insert into tenure.schedule (application, name, tenant_id, in_code, fingerprint, declaration)
    values ('a', 's', 'default', true, 'f', '{}');
insert into tenure.schedule_fire (schedule_id, fire_at, last_at, at, result)
    select id, now(), now(), now(), 'skipped' from tenure.schedule;
insert into tenure.unique_job (contract, tenant_id, type, scope) values ('standard', 'default', 't', 's');
insert into tenure.flow (first_id, last_id, nodes, open, cleanups, name, tenant_id, on_failure, fingerprint)
    values (1, 1, 1, 1, 0, 'f', 'default', 'stop', 'f');
insert into tenure.flow_node (id, flow_id, open, name, state, contract, queue, type)
    values (1, 1, 0, 'n', 'started', 'standard', 'q', 't');
insert into tenure.flow_end (flow_id, job_id, node, at, outcome, state) values (1, 1, 1, now(), 'failed', 'dead');
insert into tenure.rerun (job_id, as_job_id, actor) values (1, 2, 'a');
delete from tenure.job where id > 1000;
select setval('tenure.job_id_seq', 5000);
insert into tenure.dataset (current_id, name, tenant_id) values (1, 'd', 't');
insert into tenure.dataset_generation (dataset_id, number) values (1, 1);
insert into tenure.dataset_batch (generation_id, job_id, claims, state) values (1, 2, 1, 'staged');
insert into tenure.dataset_row (batch_id, key, value) values (1, 'k', '1');
insert into tenure.dataset_scope (generation_id, job_id, at, scope, location) values (1, 2, now(), 's', 'l');
insert into tenure.dataset_pin (job_id, dataset_id, generation_id, writes) values (2, 1, 1, true);
insert into tenure.dataset_output (job_id, generation_id, at, n, claims, kind) values (2, 1, now(), 0, 1, 'append');
insert into tenure.dataset_subscription (dataset_id, contract, type, argument, job)
    values (1, 'standard', 't', 'e', '{}');
insert into tenure.dataset_event (generation_id, job_id, open, input) values (1, 2, 1, '{}');
insert into tenure.dataset_delivery (subscription_id, generation_id, event_id) values (1, 1, 1);
insert into tenure.dataset_switch (kind, tenant_id, actor) values ('cutover', 't', 'a');
insert into tenure.tally (number, contract, type, tenant_id, queue, trigger, path)
values (1, 'standard', 't', 'default', 'default', 'claim', 'queued>running');
insert into tenure.tally_group (contract, type, tenant_id, queue) values ('standard', 't', 'default', 'default');
insert into tenure.rollup (start, last_at, seconds, number, group_id, bucket, ended, unit, trigger,
                           from_state, to_state)
values (now(), now(), 0, 1, 1, -1, false, 'minute', 'claim', 'queued', 'running');
insert into tenure.refusal (job_id, contract, type, tenant_id, queue, verb, code, kind)
values (1, 'standard', 't', 'default', 'default', 'succeed', 'LEASE_CONFLICT', 'stale');
insert into tenure.alarm (since, seen_at, hold_s, value, threshold, kind, tenant_id, subject, severity, summary, next)
values (now(), now(), 0, 1, 1, 'test', '', '', 'P3', 's', 'n');
insert into tenure.alarm_mute (until, muted_by) values (now(), 'ada');
insert into tenure.alarm_notice (alarm_id, next_at, change, sink) values (1, now(), 'fired', 'log');
insert into tenure.alarm_round (at) values (now());
insert into tenure.dataset_switched (switch_id, dataset_id, before_id, after_id) values (1, 1, 1, 1);
"""

#: What no emptying of tables undoes: each of these must cost the database its next test.
MESSES = {
    "table": "create table public.mess (n integer)",
    "view": "create view tenure.mess as select 1 as n",
    "schema": "create schema mess",
    "type": "create type public.mess as enum ('mess')",
    "function": "create function public.mess() returns integer language sql return 1",
    "function replaced": "create or replace function tenure.iso(at timestamptz) returns text language sql return 'm'",
    "column": "alter table tenure.job add column mess integer",
    "column dropped": "alter table tenure.claim drop column at",
    "default": "alter table tenure.job alter column queue set default 'mess'",
    "index": "create index mess on tenure.job (queue)",
    "index dropped": "drop index tenure.job_held",
    "check": "alter table tenure.job add constraint mess check (queue <> 'mess') not valid",
    "check dropped": "alter table tenure.job drop constraint job_valid",
    "condition dropped": "alter domain tenure.valid_job drop constraint job_state",
    "trigger": "create trigger mess before insert on tenure.job for each row execute function tenure.keep_the_log()",
    "trigger off": "alter table tenure.event disable trigger keep_the_log",
    "rule": "create rule mess as on insert to tenure.outbox do instead nothing",
    "policy": "create policy mess on tenure.job using (false)",
    "row security": "alter table tenure.job enable row level security",
    "storage": "alter table tenure.job set (autovacuum_enabled = false)",
    "grant": "grant select on tenure.job to public",
    "grant of a column": "grant select (id) on tenure.job to public",
    "grant of a function": "grant execute on function tenure.extend_ranges(integer) to public",
    "grant of the server's own": "grant select on pg_catalog.pg_authid to public",
    "default privilege": "alter default privileges in schema tenure grant select on tables to public",
    "comment": "comment on table tenure.job is 'mess'",
    "ranges": "select tenure.extend_ranges(6)",
    "range dropped": "drop table tenure.event_4",
    "end of a sequence": "alter sequence tenure.job_id_seq maxvalue 7",
    "step of a sequence": "alter sequence tenure.outbox_id_seq increment by 2",
    "contract": "insert into tenure.contract (name, version, digest, declaration) values ('mess', '1', 'd', '{}')",
    "contract changed": "update tenure.contract set digest = 'mess' where name = 'standard'",
    "contract gone": "delete from tenure.contract where name = 'standard'",
    "migration": "insert into tenure.migration (number, name, checksum) values (9999, 'mess', 'mess')",
    "installation": "update tenure.installation set id = gen_random_uuid()",
    "range's row": "delete from tenure.range where low = 0",
    "setting of the database": "do $$ begin execute format('alter database %I set work_mem = ''1MB''', "
    "current_database()); end $$",
    "setting of a role": "do $$ begin execute format('alter role %I in database %I set work_mem = ''1MB''', "
    "current_user, current_database()); end $$",
    "limit of the database": "do $$ begin execute format('alter database %I connection limit 5', "
    "current_database()); end $$",
    "comment on the database": "do $$ begin execute format('comment on database %I is ''mess''', "
    "current_database()); end $$",
    "statistics": "insert into tenure.claim (key) values (gen_random_uuid()); analyze tenure.claim",
    "statistics of what stays": "analyze tenure.contract",
    "large object": "select lo_from_bytea(0, 'mess')",
    "temporary table": "create temporary table mess (n integer)",
}


@contextmanager
def borrowed(databases: Databases) -> Iterator[Harness]:
    """A database as a test gets it."""
    with databases.lend() as dsn, Harness(dsn) as db:
        yield db


def identity(db: Harness) -> int:
    """What tells one copy from another, whatever it is called."""
    number: int = db.value("select oid from pg_database where datname = current_database()")
    return number


def dumped(dsn: str) -> str:
    """All that pg_dump knows of a database: structure, rights, rows and sequences."""
    done = subprocess.run([find_binaries() / "pg_dump", dsn], capture_output=True, check=True, text=True)
    return "\n".join(line for line in done.stdout.splitlines() if not line.startswith(("\\restrict", "\\unrestrict")))


def physical(db: Harness) -> list[dict[str, object]]:
    """What the planner goes by: the size of every file and what is known of the rows in it."""
    return db.sql(
        "select c.oid, pg_relation_size(c.oid) as bytes, relpages, reltuples, relallvisible, count(staattnum) as known "
        "from pg_class as c left join pg_statistic on starelid = c.oid where c.oid >= 16384 group by c.oid order by oid"
    )


def is_like_new(databases: Databases, db: Harness) -> None:
    """Assert that a database cannot be told from a fresh copy."""
    with own_database(databases.server, f"template {databases.template}") as fresh, Harness(fresh) as new:
        assert physical(db) == physical(new)
        assert dumped(db.dsn) == dumped(fresh)
    assert db.value("select count(*) from pg_stat_activity where datname = current_database()") == 1


def looks(look: Look, db: Harness) -> list[tuple[object, ...]]:
    """How a database looks after it was emptied."""
    db.sql(look.emptying)
    with db.connection.cursor(row_factory=tuple_row) as cursor:
        return cursor.execute(look.question.encode()).fetchall()


def test_rows_everywhere_are_gone_and_the_database_is_used_again(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "leaving_s", 60)  # a backend may take its time to end
    with borrowed(databases) as db:
        db.sql(_ROWS)
        with db.connection.transaction(force_rollback=True):
            db.sql("insert into tenure.effect (job_id, node, claims, at) values (2, 'n', 1, now())")
        empty = db.sql("select relname from pg_class where relnamespace = 'tenure'::regnamespace and relkind = 'r' "
                       "and pg_relation_size(oid) = 0")  # fmt: skip
        assert not empty, "a table without a row shows nothing"
        used, name = identity(db), db.connection.info.dbname
    with borrowed(databases) as db:
        assert identity(db) == used
        assert db.connection.info.dbname != name
        is_like_new(databases, db)
        assert db.value("select nextval('tenure.job_id_seq')") == 1


def test_a_mess_is_gone_with_its_database(databases: Databases) -> None:
    with borrowed(databases) as db:
        db.sql(_ROWS)
        db.spy()
        migrate(db.dsn, {"errand": replace(BUILT_IN["phase27"], name="errand")})
        used = identity(db)
    with borrowed(databases) as db:
        assert identity(db) != used
        assert db.value("select count(*) from pg_database where oid = %s", used) == 0
        is_like_new(databases, db)


def test_a_database_that_somebody_is_connected_to_is_not_used_again(databases: Databases) -> None:
    with borrowed(databases) as db:
        used, dsn = identity(db), db.dsn
        late = psycopg.connect(dsn, autocommit=True)
    with late, borrowed(databases) as db:
        assert identity(db) != used
        with pytest.raises(psycopg.OperationalError):
            late.execute("select 1")


def test_who_comes_late_does_not_find_the_next_tests_database(databases: Databases) -> None:
    with borrowed(databases) as db:
        dsn = db.dsn
    with borrowed(databases), pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(dsn)


@pytest.mark.parametrize("mess", MESSES.values(), ids=MESSES.keys())
def test_a_mess_is_noticed(databases: Databases, mess: str) -> None:
    with borrowed(databases) as db:
        assert databases.look
        with db.connection.transaction(force_rollback=True):
            assert looks(databases.look, db) == databases.look.answer
            db.sql(mess)
            assert looks(databases.look, db) != databases.look.answer
