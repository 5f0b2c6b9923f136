"""Contract `phase27`: the tables in the document's words, the four states, and which tasks may be claimed."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tenure.errors import InvalidTransition, StaleLease
from tenure.jobs.job import Failure, NewJob
from tenure.postgres import statement
from tenure.postgres.store import Store
from tests.clock import MOMENT, TICK, StoppedClock
from tests.contracts.phase27 import (
    BOOM,
    child,
    claim_at_once,
    claimed,
    events,
    fail_once,
    fail_times,
    forged,
    made,
    said,
    take,
    task,
)
from tests.harness import Harness

HOUR = timedelta(hours=1)


def set_due(db: Harness, task_id: int, due: str) -> None:
    """Give a task this due time, an SQL expression."""
    db.sql(f"update tenure.job set due_at = {due} where id = %s", task_id)


def set_lock(db: Harness, task_id: int, expires: str) -> None:
    """Give a task this lock expiry, an SQL expression."""
    db.sql(f"update tenure.job set lease_expires_at = {expires} where id = %s", task_id)


@pytest.mark.req("S0-01")
async def test_tasks_have_the_documents_columns_and_types(db: Harness) -> None:
    columns = db.sql(
        "select column_name, data_type from information_schema.columns "
        "where table_schema = 'tenure_phase27' and table_name = 'tasks'"
    )
    types = {column["column_name"]: column["data_type"] for column in columns}
    instant = "timestamp with time zone"
    wanted = {
        "attempt": "integer", "max_attempts": "integer", "available_at": instant, "locked_by": "text",
        "lock_expires_at": instant, "last_error": "jsonb", "status": "text", "started_at": instant,
        "completed_at": instant,
    }  # fmt: skip
    assert wanted.items() <= types.items()


@pytest.mark.req("S0-02")
async def test_every_event_has_a_kind_and_an_object_as_payload(store: Store, db: Harness) -> None:
    ended, retried = await made(store, max_attempts=1), await made(store)
    await fail_once(store)
    await fail_once(store)
    db.due(retried)
    await store.succeed((await take(store)).held)
    rows = db.sql(
        "select *, pg_typeof(kind)::text as type, jsonb_typeof(payload) as shape from tenure_phase27.task_events"
    )
    assert {row["kind"] for row in rows} == {"task.running", "task.completed", "task.failed", "task.requeued"}
    assert {(row["type"], row["shape"]) for row in rows} == {("text", "object")}
    assert all(None not in row.values() for row in rows), "id, run_id, actor and ts are always there"
    assert len({row["id"] for row in rows}) == len(rows) == len(events(db, ended)) + len(events(db, retried)) == 7


@pytest.mark.req("S0-06")
async def test_locked_by_is_the_workers_id_verbatim_while_running_and_null_otherwise(store: Store, db: Harness) -> None:
    worker, task_id = "w-é:1/α", await made(store, max_attempts=2)
    completing = await made(store)
    assert task(db, task_id)["locked_by"] is None
    job = await take(store, worker)
    stored = db.value("select convert_to(locked_by, 'UTF8') from tenure_phase27.tasks where task_id = %s", task_id)
    assert bytes(stored) == worker.encode()
    await store.fail(job.held, BOOM)
    assert (task(db, task_id)["status"], task(db, task_id)["locked_by"]) == ("queued", None)
    await store.succeed((await take(store, worker)).held)
    assert (task(db, completing)["status"], task(db, completing)["locked_by"]) == ("completed", None)
    db.due(task_id)
    await fail_once(store, worker=worker)
    assert (task(db, task_id)["status"], task(db, task_id)["locked_by"]) == ("failed", None)


@pytest.mark.req("S0-08")
async def test_last_error_is_the_most_recent_failure_alone(store: Store, db: Harness) -> None:
    task_id = await made(store)
    assert task(db, task_id)["last_error"] is None
    await fail_once(store, Failure("A", code="E_A"))
    db.due(task_id)
    await fail_once(store, Failure("B"))
    error = task(db, task_id)["last_error"]
    assert (error["message"], error["attempt"]) == ("B", 2)
    assert "code" not in error, "nothing of the first failure is left"
    db.due(task_id)
    await store.succeed((await take(store)).held)
    assert task(db, task_id)["last_error"] == error, "a success keeps the last failure"


@pytest.mark.req("S0-09")
async def test_only_the_four_states_can_be_stored(store: Store, db: Harness) -> None:
    done, failed, running, queued = [await made(store, max_attempts=1) for _ in range(4)]
    await store.succeed((await take(store)).held)
    await fail_once(store)
    await take(store)
    found = db.sql("select task_id, status from tenure_phase27.tasks order by task_id")
    assert [(row["task_id"], row["status"]) for row in found] == [
        (done, "completed"), (failed, "failed"), (running, "running"), (queued, "queued"),
    ]  # fmt: skip
    before = db.fingerprint(done, failed, running, queued)
    for unknown in ("x", "QUEUED", "succeeded", "cancelled", ""):
        for table, task_id in (("job", queued), ("job_done", done)):
            with pytest.raises(psycopg.errors.CheckViolation):
                db.sql(f"update tenure.{table} set state = %s where id = %s", unknown, task_id)
        with pytest.raises(psycopg.errors.CheckViolation):
            db.sql(
                "insert into tenure.job (contract, version, state, role, type, max_attempts) "
                "values ('phase27', '1', %s, 'ready', 't', 5)",
                unknown,
            )
    assert db.fingerprint(done, failed, running, queued) == before
    assert db.value("select count(*) from tenure_phase27.tasks") == 4


@pytest.mark.req("S0-10")
async def test_nothing_changes_a_completed_task(store: Store, db: Harness) -> None:
    task_id = await made(store)
    held = (await take(store)).held
    await store.succeed(held)
    # Even with the columns of a task that waits, or of one whose worker died.
    for column in ("due_at", "lease_expires_at"):
        db.sql(f"update tenure.job_done set {column} = now() - interval '1 hour' where id = %s", task_id)
        before = db.fingerprint(task_id)
        assert await claimed(store) == []
        assert await store.reap("phase27") == []
        for call in (store.succeed(held), store.fail(held, BOOM)):
            with pytest.raises(InvalidTransition) as refused:
                await call
            assert refused.value.state == "completed"
        for call in (store.succeed(forged(task_id, 1)), store.fail(forged(task_id, 1), BOOM)):
            with pytest.raises(StaleLease):
                await call
        (answer,) = await store.claim_by_id([task_id], worker="w2", contract="phase27")
        assert isinstance(answer, InvalidTransition)
        assert db.fingerprint(task_id) == before


@pytest.mark.req("S0-11")
async def test_a_failed_task_is_never_claimed_again(store: Store, db: Harness, dsn: str) -> None:
    task_id = await made(store, max_attempts=1)
    await fail_once(store)
    db.sql(
        "update tenure.job_done set due_at = now() - interval '1 hour', lease_expires_at = now() - interval '1 hour' "
        "where id = %s",
        task_id,
    )
    before = db.fingerprint(task_id)
    assert claim_at_once(dsn, 16) == []
    assert db.fingerprint(task_id) == before


@pytest.mark.req("S0-12")
async def test_of_one_task_in_each_state_only_the_queued_one_is_claimed(store: Store, db: Harness) -> None:
    done, failed, running, queued = [await made(store, max_attempts=1) for _ in range(4)]
    await store.succeed((await take(store)).held)
    await fail_once(store)
    await take(store)
    assert await claimed(store, "w2") == [queued]
    assert await claimed(store, "w2") == []
    assert [task(db, each)["attempt"] for each in (done, failed, running, queued)] == [1, 1, 1, 1]


@pytest.mark.req("S0-13", "S0-05")
async def test_a_task_is_claimable_when_its_available_at_is_null_or_has_come(clock: StoppedClock, db: Harness) -> None:
    async with Store.open(clock.dsn) as store:
        unset, past, future, soon = [await made(store) for _ in range(4)]
        moments = {past: MOMENT - timedelta(seconds=1), future: MOMENT + HOUR, soon: MOMENT + timedelta(seconds=1)}
        set_due(db, unset, "null")
        for task_id, due in moments.items():
            set_due(db, task_id, f"'{due.isoformat()}'")
        assert await claimed(store) == sorted([unset, past])
        clock.set(moments[soon] - TICK)
        assert await claimed(store) == []
        clock.set(moments[soon])
        assert await claimed(store) == [soon]
    assert events(db, soon)[0]["ts"] == task(db, soon)["available_at"] == moments[soon]
    assert task(db, future)["attempt"] == 0


@pytest.mark.req("S0-13", "S0-05")
async def test_a_task_is_claimable_at_the_very_moment_of_its_available_at(clock: StoppedClock, db: Harness) -> None:
    async with Store.open(clock.dsn) as store:
        before, equal, after = [await made(store, run_at=MOMENT + n * TICK) for n in (-1, 0, 1)]
        assert await claimed(store) == [before, equal]
        set_due(db, after, f"'{MOMENT.isoformat()}'")
        assert await claimed(store) == [after]


@pytest.mark.req("S0-14")
async def test_a_queued_task_with_a_lock_in_the_future_is_not_claimable(store: Store, db: Harness) -> None:
    unset, past, future = [await made(store) for _ in range(3)]
    set_lock(db, past, "now() - interval '1 second'")
    set_lock(db, future, "now() + interval '1 hour'")
    before = db.fingerprint(future)
    assert await claimed(store) == [unset, past]
    assert await claimed(store) == []
    assert db.fingerprint(future) == before
    set_lock(db, future, "now() - interval '1 millisecond'")
    assert await claimed(store) == [future]


@pytest.mark.req("S0-14", "S0-16")
async def test_a_lock_that_ends_at_this_very_moment_still_holds(clock: StoppedClock, db: Harness) -> None:
    async with Store.open(clock.dsn) as store:
        running = await made(store)
        assert await claimed(store) == [running]
        queued = await made(store)
        for task_id in (queued, running):
            set_lock(db, task_id, f"'{MOMENT.isoformat()}'")
        before = db.fingerprint(queued, running)
        assert await claimed(store) == []
        assert db.fingerprint(queued, running) == before
        for task_id in (queued, running):
            set_lock(db, task_id, f"'{(MOMENT - TICK).isoformat()}'")
        assert await claimed(store) == sorted([queued, running])


_TIME_IN_TEXT = re.compile(r"\d{4}-\d\d-\d\d[T ]|\b1[5-9]\d{8,}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.mark.req("S0-15")
async def test_a_worker_sends_no_time_of_its_own(store: Store, db: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    bind, sent = statement.bound, []

    def listen(value: Any) -> statement.Value:
        sent.append(_UUID.sub("", str(bind(value))))
        return bind(value)

    monkeypatch.setattr("tenure.postgres.statement.bound", listen)
    task_id = await made(store, max_attempts=2)
    await fail_times(store, db, task_id, 1)
    held = (await take(store)).held
    db.expire(task_id)
    assert await claimed(store) == []
    assert len(await store.reap("phase27")) == 1
    await made(store)
    await store.succeed((await take(store)).held)
    assert held.claims == 2
    assert len(sent) > 100
    assert [text for text in sent if _TIME_IN_TEXT.search(text)] == []
    # The listener would have heard one: the only time a client may give is when a task should run.
    await store.enqueue(NewJob("t", contract="phase27", run_at=datetime.now(UTC)))
    assert [text for text in sent if _TIME_IN_TEXT.search(text)] != []


async def rows_around_now(store: Store, db: Harness, queue: str) -> None:
    """Tasks that a clock an hour off would judge differently, each with its name as payload."""
    for name in ("orphaned", "working"):
        await made(store, queue=queue, payload={"row": name})
    assert len(await store.claim("phase27", [queue], worker="w1", limit=2)) == 2
    for name in ("past", "due", "future", "locked", "unlocked"):
        await made(store, queue=queue, payload={"row": name})
    minutes = {"orphaned": -30, "working": 30, "locked": 30, "unlocked": -30, "past": -30, "future": 30}
    for name, ahead in minutes.items():
        column = "due_at" if name in ("past", "future") else "lease_expires_at"
        change = f"{column} = now() + %s * interval '1 minute'"
        db.sql(f"update tenure.job set {change} where queue = %s and payload ->> 'row' = %s", ahead, queue, name)


@pytest.mark.req("S0-15")
async def test_workers_an_hour_off_claim_what_the_database_clock_allows(
    store: Store, db: Harness, dsn: str, tmp_path: Path
) -> None:
    shifts = {"slow": -3600, "right": 0, "fast": 3600}
    for queue in shifts:
        await rows_around_now(store, db, queue)
        (tmp_path / queue).mkdir()
    processes = {queue: child(dsn, queue, tmp_path / queue, clock_shift=shift) for queue, shift in shifts.items()}
    answers = {queue: said(process) for queue, process in processes.items()}
    for queue, shift in shifts.items():
        assert answers[queue]["clocks"] == pytest.approx([time.time() + shift] * 2, abs=1_000), "the clock was shifted"
        assert answers[queue]["claimed"] == ["due", "orphaned", "past", "unlocked"]
        rows = db.sql("select * from tenure_phase27.tasks where queue = %s and last_error is not null", queue)
        assert len(rows) == 4
        for row in rows:
            delay = timedelta(milliseconds=row["last_error"]["backoff_ms"])
            assert row["available_at"] == row["updated_at"] + delay
            assert abs(db.value("select clock_timestamp()") - row["updated_at"]) < timedelta(minutes=20)
