"""What a dead worker left runs alone, few at a time; what waits too long for its turn is another worker's to run."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.app import App
from tenure.postgres.store import Store
from tenure.worker import Worker, executor, watchdog
from tests.harness import Harness
from tests.worker import program
from tests.worker.rounds import HALF_S, Pulse
from tests.worker.test_failure_log import failures, log
from tests.worker.working import LEASE_S, until, working

__all__ = ["log"]

_HELD_BY = "select count(*) from tenure.job where lease_owner = %s"


@pytest.fixture(autouse=True)
def one_at_a_time(monkeypatch: pytest.MonkeyPatch, pulse: Pulse) -> None:
    """Let each worker run one job alone at a time, and let watchdogs have the clock of hearts."""
    monkeypatch.setattr(executor, "_ALONE_AT_ONCE", 1)
    monkeypatch.setattr(watchdog, "time", pulse)


async def left_by_a_dead_worker(
    app: App, store: Store, db: Harness, gate: Path, contract: str, limit: int
) -> list[int]:
    """Three jobs whose first attempt was lost; each waits for a file of its own."""
    app.tasks["hold"] = program.hold
    hold = program.hold.options(contract=contract, max_attempts=limit)
    # The limit of the others is shorter than they wait: it is to end handlers, and not those that wait for one.
    limited = hold.options(timeout=LEASE_S)
    ids = await app.enqueue_many(one.call(f"{gate}{n}") for n, one in enumerate((hold, limited, limited)))
    assert len(await store.claim(contract, worker="dead", limit=3)) == 3
    db.expire(*ids)
    await store.reap(contract)
    db.due(*ids)
    return ids


async def first_begun(worker: Worker, gate: Path) -> None:
    """Wait until a worker has claimed all of them and begun the first one."""
    await until(lambda: worker.counts["claimed"] == 3 and Path(f"{gate}0.began").exists())


def let_go(gate: Path, *numbers: int) -> None:
    """Let handlers end."""
    for n in numbers:
        Path(f"{gate}{n}").touch()


@contextmanager
def all_let_go(gate: Path) -> Iterator[None]:
    """Let all handlers end in any case, so that no worker waits for them."""
    try:
        yield
    finally:
        let_go(gate, 0, 1, 2)


async def test_a_job_whose_turn_to_run_alone_does_not_come_is_handed_back_and_another_worker_runs_it(
    app: App, store: Store, db: Harness, pulse: Pulse, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    first, *others = await left_by_a_dead_worker(app, store, db, gate, "standard", 2)
    async with working(app, name="first", grace=600.0) as one:
        with all_let_go(gate):
            await first_begun(one, gate)
            one.stop()  # so that it does not take them again
            await pulse.half_a_lease(db, [first])
            await until(lambda: db.value(_HELD_BY, "first") == 1)
            for job_id in others:
                handed = db.log(job_id)[-1]
                assert handed["trigger"] == "hand_back"
                assert handed["reason"] == "no process of its own was free for it within half of its lease"
                # Not at once: the worker that has no turn for it would be the first to take it again.
                assert db.row(job_id)["due_at"] - handed["ts"] >= timedelta(seconds=0.9)
            db.due(*others)
            let_go(gate, 1, 2)
            pulse.now = time.monotonic()  # for the second worker no time has passed
            async with working(app, name="second") as two:
                await until(lambda: two.counts["succeeded"] == 2)
            assert db.value(_HELD_BY, "first") == 1, "what has begun goes on"
    assert dict(one.counts) == {"claimed": 3, "handed back": 2, "succeeded": 1}
    assert [(db.row(job_id)["claims"], db.row(job_id)["raises"]) for job_id in others] == [(3, 1)] * 2


async def test_a_worker_has_its_slots_again_when_it_has_handed_back_what_had_no_turn(
    app: App, store: Store, db: Harness, pulse: Pulse, tmp_path: Path
) -> None:
    @app.task(priority=0)
    async def other() -> None: ...

    gate = tmp_path / "gate"
    await left_by_a_dead_worker(app, store, db, gate, "standard", 2)
    async with working(app, concurrency=3) as worker:
        with all_let_go(gate):
            await first_begun(worker, gate)
            await other.enqueue()
            pulse.passes(HALF_S)
            await until(lambda: worker.counts["succeeded"] == 1)


async def test_a_job_that_would_end_by_being_handed_back_keeps_its_lease_until_its_turn(
    app: App, store: Store, db: Harness, pulse: Pulse, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    ids = await left_by_a_dead_worker(app, store, db, gate, "simple", 2)
    async with working(app) as worker:
        with all_let_go(gate):
            await first_begun(worker, gate)
            for _ in range(6):
                await pulse.half_a_lease(db, ids)
        await until(lambda: worker.counts["succeeded"] == 3)
    assert dict(worker.counts) == {"claimed": 3, "succeeded": 3}
    assert [db.row(job_id)["claims"] for job_id in ids] == [2] * 3


async def test_a_hand_back_that_spends_the_attempt_is_logged(
    app: App, store: Store, db: Harness, pulse: Pulse, log: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    first, *others = await left_by_a_dead_worker(app, store, db, gate, "simple", 3)
    log.clear()
    log.set_level(logging.INFO, "tenure.worker")
    async with working(app, grace=600.0) as worker:
        with all_let_go(gate):
            await first_begun(worker, gate)
            worker.stop()
            await pulse.half_a_lease(db, [first])
            await until(lambda: worker.counts["handed back"] == 2)
    for job_id in others:
        (record,) = failures(log, job_id)
        assert (record.attempt, record.decision, record.error_code) == (2, "retry", "HANDED_BACK")
    assert failures(log, first) == []
