"""Contract `phase27`: a claim is atomic and counted, an orphan is reclaimed in place, a late holder has no effect."""

from __future__ import annotations

import signal
from collections import Counter
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from tenure.errors import StaleLease
from tenure.jobs.job import NewJob
from tenure.jobs.outcome import Moved
from tenure.postgres.store import Store
from tests.contracts.phase27 import (
    BOOM,
    RUN,
    child,
    claim_at_once,
    claimed,
    events,
    fail_times,
    made,
    no_event_can_be_written,
    pattern,
    payloads,
    said,
    take,
    task,
    work,
)
from tests.harness import Harness
from tests.holder_calls import calls

pytestmark = pytest.mark.core

TOGETHER = """
    select t.task_id from tenure_phase27.tasks t
    left join tenure_phase27.task_events e on e.task_id = t.task_id and e.kind = 'task.running'
         and (e.payload ->> 'attempt')::int = t.attempt
    where (t.status = 'running') <> (t.locked_by is not null)
       or (t.status = 'running') <> (t.lock_expires_at is not null)
       or t.attempt <> (select count(*) from tenure_phase27.task_events c
                        where c.task_id = t.task_id and c.kind = 'task.running')
       or (t.attempt > 0) <> (e.id is not null)
"""


@pytest.mark.req("S0-03")
async def test_attempt_is_the_number_of_successful_claims(store: Store, db: Harness) -> None:
    task_id = await made(store)
    assert task(db, task_id)["attempt"] == 0
    for count in (1, 2, 3, 4):
        job = await take(store)
        assert task(db, task_id)["attempt"] == count
        running = db.fingerprint(task_id)
        assert await claimed(store, "w2") == []
        assert db.fingerprint(task_id) == running, "a claim that wins nothing changes nothing"
        if count == 2:
            db.expire(task_id)  # the next claim is a reclaim, and counts as well
            continue
        await store.fail(job.held, BOOM)
        waiting = db.fingerprint(task_id)
        assert await claimed(store, "w2") == []
        assert db.fingerprint(task_id) == waiting
        db.due(task_id)
    assert task(db, task_id)["attempt"] == 4


@pytest.mark.req("S0-03")
async def test_of_32_claims_at_once_one_counts(store: Store, db: Harness, dsn: str) -> None:
    task_id = await made(store)
    assert claim_at_once(dsn, 32) == [task_id]
    assert task(db, task_id)["attempt"] == 1
    assert pattern(db, task_id) == [("running", 1)]


@pytest.mark.req("S0-16", "S0-07", "S0-20")
async def test_a_running_task_is_reclaimed_after_its_lock_expired(store: Store, db: Harness) -> None:
    task_id = await made(store)
    await take(store, "A")
    assert await claimed(store, "B") == []
    assert task(db, task_id)["attempt"] == 1
    db.expire(task_id)
    assert (await take(store, "B")).id == task_id
    row = task(db, task_id)
    assert (row["status"], row["locked_by"], row["attempt"]) == ("running", "B", 2)


@pytest.mark.req("S0-17", "S0-07")
async def test_a_running_task_without_a_lock_expiry_is_never_reclaimed(store: Store, db: Harness, dsn: str) -> None:
    task_id = await made(store)
    await take(store)
    db.sql("update tenure.job set lease_expires_at = null where id = %s", task_id)
    before = db.fingerprint(task_id)
    assert claim_at_once(dsn, 8) == []
    assert await store.reap("phase27") == []
    assert db.fingerprint(task_id) == before


@pytest.mark.req("S0-18", "S0-07")
async def test_a_running_task_is_never_reclaimed_during_its_lease(store: Store, db: Harness, dsn: str) -> None:
    task_id = await made(store)
    await take(store)
    before = db.fingerprint(task_id)
    assert claim_at_once(dsn, 32) == []
    assert await store.reap("phase27") == []
    assert db.fingerprint(task_id) == before


@pytest.mark.req("S0-19")
async def test_of_64_reclaimers_exactly_one_wins(store: Store, db: Harness, dsn: str) -> None:
    task_id = await made(store)
    await take(store)
    db.expire(task_id)
    assert claim_at_once(dsn, 64) == [task_id]
    assert pattern(db, task_id) == [("running", 1), ("running", 2)]
    assert task(db, task_id)["attempt"] == 2
    db.log_is_sound(task_id)


@pytest.mark.req("S0-21", "S0-20")
async def test_a_reclaim_is_a_claim_and_not_a_failure(store: Store, db: Harness) -> None:
    task_id = await made(store)
    await fail_times(store, db, task_id, 1)
    await take(store, "A")
    db.expire(task_id)
    before = task(db, task_id)
    await take(store, "B")
    after = task(db, task_id)
    assert pattern(db, task_id) == [
        ("running", 1), ("failed", 1), ("requeued", 1), ("running", 2), ("running", 3),
    ]  # fmt: skip
    last = events(db, task_id)[-1]
    assert (last["actor"], after["locked_by"], after["attempt"]) == ("B", "B", before["attempt"] + 1)
    assert after["lock_expires_at"] == last["ts"] + timedelta(seconds=60) > before["lock_expires_at"]
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"attempt", "locked_by", "lock_expires_at", "updated_at"}, "started_at and last_error stay"


@pytest.mark.req("S0-22")
async def test_an_orphan_at_the_cap_is_not_run_again_but_failed(
    store: Store, db: Harness, dsn: str, tmp_path: Path
) -> None:
    task_id = await made(store, max_attempts=1, payload={"row": "poison"})
    process = child(dsn, "default", tmp_path, end="die")
    assert said(process)["claimed"] == ["poison"]
    assert process.returncode == -signal.SIGKILL
    db.expire(task_id)
    ran: list[int] = []
    await work(store, db, lambda job: ran.append(job.id))
    assert claim_at_once(dsn, 8) == []
    (sealed,) = await store.reap("phase27")
    assert isinstance(sealed, Moved)
    assert (sealed.job_id, sealed.state, sealed.will_retry) == (task_id, "failed", False)
    await work(store, db, lambda job: ran.append(job.id))
    assert ran == [], "the handler ran once: in the child that was killed"
    row = task(db, task_id)
    assert (row["status"], row["attempt"], row["locked_by"], row["lock_expires_at"]) == ("failed", 1, None, None)
    assert row["last_error"]["terminal"] is True
    assert pattern(db, task_id) == [("running", 1), ("failed", 1)]
    (failed,) = payloads(db, task_id, "task.failed")
    assert failed.keys() == {*RUN, "max_attempts", "terminal", "error"}
    assert failed["terminal"] is True
    assert await store.reap("phase27") == []


@pytest.mark.req("S0-23")
@pytest.mark.parametrize("second", ["other", "same"])
async def test_a_late_holder_has_no_effect_even_under_the_same_worker_id(
    store: Store, db: Harness, second: str
) -> None:
    task_id = await made(store)
    late = (await take(store, "same")).held
    db.expire(task_id)
    current = await take(store, second)
    for _ in ("while the new holder runs", "after it ended"):
        before = db.fingerprint(task_id)
        for call in (store.succeed(late, "late"), store.fail(late, BOOM)):
            with pytest.raises(StaleLease):
                await call
        assert db.fingerprint(task_id) == before
        if task(db, task_id)["status"] == "running":
            await store.succeed(current.held, "current")
    assert (task(db, task_id)["status"], task(db, task_id)["result"]) == ("completed", "current")
    assert pattern(db, task_id) == [("running", 1), ("running", 2), ("completed", 2)]


@pytest.mark.req("S0-24")
@pytest.mark.parametrize("kind", ["claim", "reclaim"])
async def test_a_claim_that_cannot_write_its_event_leaves_everything_as_it_was(
    store: Store, db: Harness, kind: str
) -> None:
    task_id = await made(store)
    if kind == "reclaim":
        await take(store)
        db.expire(task_id)
    before, keys = db.fingerprint(task_id), db.value("select count(*) from tenure.claim")
    with no_event_can_be_written(db):
        for _ in range(3):
            with pytest.raises(psycopg.errors.RaiseException, match="no event today"):
                await take(store, "w2")
            assert db.fingerprint(task_id) == before
            assert db.value("select count(*) from tenure.claim") == keys
    assert (await take(store, "w2")).id == task_id
    assert db.sql(TOGETHER) == []
    attempt = 2 if kind == "reclaim" else 1
    assert (task(db, task_id)["attempt"], len(events(db, task_id))) == (attempt, attempt)


@pytest.mark.req("S0-24")
async def test_a_claims_columns_and_its_event_are_one_transaction(store: Store, db: Harness) -> None:
    ids = [await made(store) for _ in range(3)]
    assert await claimed(store) == ids
    wrote = db.sql(
        "select j.xmin::text as row, e.xmin::text as event from tenure.job j join tenure.event e on e.job_id = j.id"
    )
    assert len(wrote) == 3
    assert all(each["row"] == each["event"] for each in wrote)
    assert db.sql(TOGETHER) == []


@pytest.mark.req("S0-25", "S0-26", "S0-27", "S0-28")
async def test_a_claim_sets_status_attempt_locked_by_and_lock_expires_at(store: Store, db: Harness) -> None:
    task_id = await made(store)
    before, earliest = task(db, task_id), db.value("select clock_timestamp()")
    await take(store, "w7")
    after, latest = task(db, task_id), db.value("select clock_timestamp()")
    assert (before["status"], after["status"]) == ("queued", "running")
    assert (before["attempt"], after["attempt"]) == (0, 1)
    assert (before["locked_by"], after["locked_by"]) == (None, "w7")
    assert before["lock_expires_at"] is None
    (running,) = events(db, task_id)
    assert after["lock_expires_at"] - running["ts"] == timedelta(milliseconds=60_000)
    assert earliest < running["ts"] < latest
    assert {name for name in after if after[name] != before[name]} == {
        "status", "attempt", "locked_by", "lock_expires_at", "started_at", "updated_at",
    }  # fmt: skip


@pytest.mark.req("S0-29")
async def test_started_at_is_the_first_claim_for_ever(store: Store, db: Harness) -> None:
    task_id = await made(store)
    assert task(db, task_id)["started_at"] is None
    await fail_times(store, db, task_id, 1)
    first = events(db, task_id)[0]["ts"]
    assert task(db, task_id)["started_at"] == first
    job = await take(store)
    assert task(db, task_id)["started_at"] == first
    db.expire(task_id)
    job = await take(store)
    assert task(db, task_id)["started_at"] == first
    await store.succeed(job.held)
    assert task(db, task_id)["started_at"] == first


@pytest.mark.req("S0-30")
async def test_64_workers_claim_1000_tasks_each_once(store: Store, db: Harness, dsn: str) -> None:
    made_jobs = await store.enqueue_many([NewJob("t", contract="phase27")] * 1000)
    ids = sorted(db.value("select array_agg(task_id) from tenure_phase27.tasks"))
    assert len(ids) == len(made_jobs) == 1000
    assert claim_at_once(dsn, 64, until_empty=True) == ids
    assert db.value("select sum(attempt) from tenure_phase27.tasks") == 1000
    assert db.value("select max(attempt) from tenure_phase27.tasks") == 1
    assert db.sql(TOGETHER) == []


@pytest.mark.req("S0-31", "S0-32")
async def test_task_running_has_exactly_its_six_keys(store: Store, db: Harness) -> None:
    task_id = await made(store, max_attempts=3)
    await take(store, "w1")
    db.expire(task_id)
    await take(store, "w2")
    first, second = payloads(db, task_id, "task.running")
    for payload, worker, attempt in ((first, "w1", 1), (second, "w2", 2)):
        assert payload.keys() == {"ts", "task_id", "run_id", "actor", "attempt", "max_attempts"}
        assert (payload["attempt"], payload["actor"], payload["max_attempts"]) == (attempt, worker, 3)
        assert payload["task_id"] == str(task_id)
    assert (second["attempt"], second["actor"]) == (task(db, task_id)["attempt"], task(db, task_id)["locked_by"])
    shown = db.sql("select tenure.iso(ts) as ts from tenure_phase27.task_events order by ts")
    assert [row["ts"] for row in shown] == [first["ts"], second["ts"]]


@pytest.mark.req("S0-33")
async def test_run_id_is_one_per_attempt(store: Store, db: Harness) -> None:
    completed, failed, crashed = [await made(store, max_attempts=n) for n in (3, 2, 2)]
    for _ in range(2):
        jobs = {job.id: job for job in await store.claim("phase27", worker="w1", limit=10)}
        await store.report("fail", calls([jobs[completed].held, jobs[failed].held], failures=[BOOM, BOOM]))
        db.expire(crashed)
        db.due(completed, failed)
    await store.reap("phase27")
    await store.succeed((await take(store)).held)
    by_run: dict[str, list[str]] = {}
    for event in db.sql("select * from tenure_phase27.task_events order by ts, id"):
        assert event["run_id"] == event["payload"]["run_id"]
        by_run.setdefault(event["run_id"], []).append(event["kind"])
    assert len(by_run) == 3 + 2 + 2, "a run for every attempt, none shared between attempts or tasks"
    for kinds in by_run.values():
        counts = Counter(kinds)
        assert counts["task.running"] == 1
        assert counts["task.completed"] + counts["task.failed"] <= 1
        assert kinds[0] == "task.running"
    for task_id, runs in ((completed, 3), (failed, 2), (crashed, 2)):
        attempts = {(event["run_id"], event["payload"]["attempt"]) for event in events(db, task_id)}
        assert len(attempts) == runs, "all events of an attempt have one run_id"
