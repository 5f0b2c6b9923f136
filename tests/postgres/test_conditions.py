"""The database refuses rows that no contract allows; the conditions change without a lock on a table."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import Contract
from tenure.contracts.notation import path
from tenure.errors import SchemaError
from tenure.jobs.job import NewJob
from tenure.postgres.migrate import MigrationReport, migrate, render_sql
from tenure.postgres.store import Store
from tests.harness import Harness

pytestmark = pytest.mark.core

_JOB = {
    "contract": "standard", "version": "1", "state": "queued", "role": "ready", "type": "t", "max_attempts": 5,
    "priority": 5, "seq": 0, "due_at": "2026-01-01",
}  # fmt: skip
_DONE = {"id": 1, **_JOB, "state": "succeeded", "role": "done", "seq": 2}
_LETTER = {
    "job_id": 1, "contract": "reliability", "tenant_id": "default", "type": "t", "reason_code": "timeout",
    "last_error": "{}", "counter": 1, "claims": 1, "correlation_id": "c", "trace_id": "t", "failed_at": "2026-01-01",
}  # fmt: skip

#: table, what differs from a row that is accepted, and the condition that refuses it.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("job", {"priority": -1}, "job_priority_check"),
    ("job", {"priority": 10}, "job_priority_check"),
    ("job", {"role": "done"}, "job_role_check"),
    ("job", {"role": "busy", "seq": 1}, "job_role_check"),
    ("job", {"contract": "nobodys"}, "job_state"),
    ("job", {"state": "failed", "seq": 1}, "job_state"),
    ("job", {"state": "running"}, "job_state"),
    ("job", {"role": "waiting"}, "job_state"),
    ("job", {"due_at": "infinity"}, "job_state"),
    ("job", {"due_at": "9999-12-31 00:00+00"}, "job_state"),
    ("job", {"due_at": "0001-01-01 00:00+00"}, "job_state"),
    ("job_done", {"role": "ready"}, "job_done_role_check"),
    ("job_done", {"state": "failed"}, "job_done_state"),
    ("job_done", {"contract": "nobodys"}, "job_done_state"),
    ("dead_letter", {"reason_code": "mood"}, "dead_letter_state"),
    ("dead_letter", {"stage": "mood"}, "dead_letter_state"),
]
_ROWS = {"job": _JOB, "job_done": _DONE, "dead_letter": _LETTER}


def insert(db: Harness, table: str, change: Mapping[str, Any]) -> None:
    """Insert a row that is accepted, but for this change."""
    row = {**_ROWS[table], **change}
    columns, marks = ", ".join(row), ", ".join(["%s"] * len(row))
    db.sql(f"insert into tenure.{table} ({columns}) values ({marks})", *row.values())


def refusal(db: Harness, table: str, change: Mapping[str, Any]) -> str | None:
    """The condition that refuses this row, also as a change of a row that is accepted; None: it is accepted."""
    with db.connection.transaction(force_rollback=True):
        try:
            with db.connection.transaction():
                insert(db, table, change)
        except psycopg.errors.CheckViolation as error:
            found = error.diag.constraint_name
        else:
            return None
        if table == "job":
            insert(db, table, {})
            changes = ", ".join(f"{column} = %s" for column in change)
            with pytest.raises(psycopg.errors.CheckViolation, match=str(found)):
                db.sql(f"update tenure.{table} set {changes}", *change.values())
    return found


def test_every_condition_refuses_a_row(db: Harness) -> None:
    for table in _ROWS:
        assert refusal(db, table, {}) is None
    assert [(table, change, refusal(db, table, change)) for table, change, _ in REFUSED] == REFUSED


def test_a_due_time_is_not_needed(db: Harness) -> None:
    assert refusal(db, "job", {"due_at": None}) is None


def test_a_job_that_has_moved_may_be_in_any_state_of_its_contract(db: Harness) -> None:
    assert refusal(db, "job", {"state": "running", "role": "active", "seq": 1}) is None


def paused(contract: Contract) -> Mapping[str, Contract]:
    """The next version of a contract, with one more state."""
    states = {**contract.states, "paused": ("waiting",)}
    more = (path("hand_back", "running > paused", due="keep"), path("promote", "paused > queued", due="now"))
    return {contract.name: replace(contract, version="next", states=states, paths=(*contract.paths, *more))}


@pytest.mark.parametrize(
    ("table", "lock"), [("job", "row exclusive"), ("job", "access exclusive"), ("job_done", "access exclusive")]
)
def test_a_new_contract_waits_for_no_lock_on_jobs(dsn: str, db: Harness, table: str, lock: str) -> None:
    new_state = {"contract": "phase27", "state": "paused", "role": "waiting", "seq": 3}
    assert refusal(db, "job", new_state) == "job_state"  # and this session has read the old condition
    with psycopg.connect(dsn) as other:
        other.execute(f"lock table tenure.{table} in {lock} mode".encode())
        migrate(dsn, paused(BUILT_IN["phase27"]), lock_timeout_ms=200)
    assert refusal(db, "job", new_state) is None
    assert migrate(dsn, paused(BUILT_IN["phase27"])) == MigrationReport()


# ------------------------------------------------------------------------------- databases from before migration 13

_BEFORE = """
alter table tenure.job drop constraint job_valid;
alter table tenure.job_done drop constraint job_done_valid;
alter table tenure.dead_letter drop constraint dead_letter_valid;
drop domain tenure.valid_job;
drop domain tenure.valid_finished_job;
drop domain tenure.valid_letter;
drop type tenure.job_facts;
drop type tenure.finished_job_facts;
drop type tenure.letter_facts;
delete from tenure.migration where number = 13;
alter table tenure.job
    add constraint job_priority_check check (priority between 0 and 9),
    add constraint job_role_check check (role in ('ready', 'waiting', 'leased', 'active', 'settling')),
    add constraint job_state check (
        contract <> 'standard' or state in ('queued', 'running', 'succeeded', 'cancelled', 'dead'));
alter table tenure.job_done
    add constraint job_done_role_check check (role = 'done'),
    add constraint job_done_state check (contract <> 'standard' or state in ('succeeded', 'cancelled', 'dead'));
alter table tenure.dead_letter add constraint dead_letter_state check (contract <> 'reliability' or stage <> 'mood');
"""
_TABLE_CHECKS = """
select conname from pg_constraint where contype = 'c' and conrelid in (
    'tenure.job'::regclass, 'tenure.job_done'::regclass, 'tenure.job_done_0'::regclass, 'tenure.dead_letter'::regclass)
order by 1
"""
_CHECKS_AFTER = ["dead_letter_status_check", "dead_letter_valid", "job_done_valid", "job_done_valid", "job_valid"]


@pytest.fixture
def before(dsn: str, db: Harness) -> Harness:
    """A database as it was before migration 13."""
    db.sql(_BEFORE)
    return db


def table_checks(db: Harness) -> list[str]:
    """The CHECKs of the tables and of one partition."""
    return [row["conname"] for row in db.sql(_TABLE_CHECKS)]


@pytest.mark.parametrize(
    ("table", "lock"), [("job", "access exclusive"), ("job", "row exclusive"), ("job_done", "share")]
)
def test_a_locked_table_stops_the_migration_before_anything_changed(before: Harness, table: str, lock: str) -> None:
    checks = table_checks(before)
    with psycopg.connect(before.dsn) as other:
        other.execute(f"lock table tenure.{table} in {lock} mode".encode())
        with pytest.raises(SchemaError, match=r"locked for 200 ms.*Next: look for long transactions"):
            migrate(before.dsn, lock_timeout_ms=200)
        other.rollback()
    assert table_checks(before) == checks
    assert refusal(before, "job", {"state": "failed"}) == "job_state"
    assert migrate(before.dsn).applied == ["0013_conditions"]
    assert table_checks(before) == _CHECKS_AFTER


async def test_a_database_that_is_migrated_refuses_the_same_rows(before: Harness) -> None:
    migrate(before.dsn)
    assert table_checks(before) == _CHECKS_AFTER
    assert [(table, change, refusal(before, table, change)) for table, change, _ in REFUSED] == REFUSED
    before.sql("select setval('tenure.job_id_seq', (select max(high) from tenure.range) - 1)")
    before.sql("select tenure.extend_ranges(4)")  # partitions that are made later have the condition too
    newest = before.value("select max(low) / 1048576 from tenure.range")
    checks = (
        f"select conname from pg_constraint where contype = 'c' and conrelid = 'tenure.job_done_{newest}'::regclass"
    )
    assert before.value(checks) == "job_done_valid"


async def test_an_interrupted_migration_leaves_no_time_without_a_condition(
    before: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> list[str]:
        raise psycopg.errors.QueryCanceled("interrupted")

    with monkeypatch.context() as patched:
        patched.setattr("tenure.postgres.migrate._rebuild_checks", fail)
        with pytest.raises(Exception, match="interrupted"):
            migrate(before.dsn)
    assert refusal(before, "job", {"state": "failed"}) == "job_state"
    assert refusal(before, "job_done", {"state": "failed"}) == "job_done_state"
    assert refusal(before, "job", {"priority": 10}) == "job_priority_check"
    migrate(before.dsn)
    assert table_checks(before) == _CHECKS_AFTER


async def test_workers_go_on_while_conditions_are_migrated(before: Harness) -> None:
    """Their statements are prepared, and return rows of the table that is changed."""
    async with Store.open(before.dsn, connections=1) as store:

        async def live() -> str:
            await store.enqueue(NewJob("walk"))
            (job,) = await store.claim(worker="w")
            await store.heartbeat(job.held)
            return (await store.succeed(job.held)).state

        for _ in range(8):
            assert await live() == "succeeded"
        migrating = asyncio.create_task(asyncio.to_thread(migrate, before.dsn))
        lives = 0
        while not migrating.done() or lives < 8:
            assert await live() == "succeeded"
            lives += 1
        assert (await migrating).applied == ["0013_conditions"]


def test_the_printed_sql_makes_the_same_conditions(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        connection.execute(render_sql().encode())
    with Harness(empty_dsn) as db:
        assert [(table, change, refusal(db, table, change)) for table, change, _ in REFUSED] == REFUSED
