"""The table of live workers: idle ones stand in it too, dead ones leave, and no work waits for it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time

import pytest

import tenure
from tenure.app import App
from tenure.jobs.job import NewJob
from tenure.jobs.live_worker import LiveWorker
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.worker.working import steady, until, working

pytestmark = pytest.mark.usefixtures("patient_presence")


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that say every 50 ms that they live."""
    monkeypatch.setattr("tenure.worker.presence.EVERY_S", 0.05)


def idle(name: str = "w1", **given: object) -> LiveWorker:
    """A worker of the queue `mail` that knows the type `send`."""
    return LiveWorker(**{"name": name, "queues": ("mail",), "contracts": ("standard",), "types": ("send",), **given})  # type: ignore[arg-type]


async def test_an_idle_worker_is_listed_with_what_it_takes_and_leaves_when_it_stops(
    app: App, store: Store, db: Harness
) -> None:
    @app.task(queue="mail", max_attempts=7)
    async def send() -> None: ...

    async with working(app, name="w1", concurrency=3, upkeep=False):
        await until(lambda: db.value("select count(*) from tenure.worker") == 1)
        (seen,) = await store.workers.list()
        assert (seen.worker_id, seen.held, seen.busy, seen.slots) == ("w1", 0, 0, 3)
        assert (seen.host, seen.pid, seen.version) == (socket.gethostname(), os.getpid(), tenure.__version__)
        assert (seen.application, seen.queues, seen.types) == (app.application, ["mail"], ["send"])
        assert "standard" in (seen.contracts or ())
        assert db.value("select declares from tenure.worker") == {
            "standard": {"send": {"max_attempts": 7, "renews": True}}
        }
    assert await store.workers.list() == []


@pytest.mark.usefixtures("soon")
async def test_a_worker_says_again_and_again_that_it_lives_and_how_busy_it_is(app: App, db: Harness) -> None:
    going = asyncio.Event()

    @app.task
    async def wait() -> None:
        await going.wait()

    async with working(app, name="w1", upkeep=False):
        await until(lambda: db.value("select count(*) from tenure.worker") == 1)
        first = db.one("select started_at, last_seen_at from tenure.worker")
        await wait.enqueue()
        await until(lambda: db.value("select busy from tenure.worker") == 1)
        later = db.one("select started_at, last_seen_at from tenure.worker")
        assert later["last_seen_at"] > first["last_seen_at"]
        assert later["started_at"] == first["started_at"]
        db.sql("delete from tenure.worker")  # as upkeep does it to one that was frozen
        await until(lambda: db.value("select count(*) from tenure.worker") == 1)
        going.set()


@pytest.mark.usefixtures("soon")
async def test_a_worker_says_how_late_its_event_loop_is_while_a_handler_blocks_it(
    app: App, store: Store, db: Harness
) -> None:
    @app.task
    async def block() -> None:
        while not db.value("select loop_lag_s > 0.2 from tenure.worker"):
            time.sleep(0.01)  # noqa: ASYNC251 (it blocks the loop until the worker has said so)

    async with working(app, name="w1", upkeep=False):
        job = await block.enqueue()
        await app.result(job, timeout=60)
        await until(lambda: db.value("select loop_lag_s < 0.2 from tenure.worker"))
        (seen,) = await store.workers.list()
        assert seen.loop_lag_s is not None


@pytest.mark.usefixtures("soon")
async def test_a_worker_that_cannot_be_entered_works_and_says_so_once(
    app: App, db: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    db.sql("alter table tenure.worker rename to worker_away")
    db.sql("alter view tenure.live_worker rename to live_worker_away")
    with caplog.at_level(logging.WARNING, "tenure.worker"):
        async with working(app, name="w1", upkeep=False) as worker:
            job = await add.enqueue(1, 2)
            assert await app.result(job, timeout=60) == 3
            presence = worker._presence
            assert presence is not None
            await until(lambda: presence.rounds_failed >= 3)
    assert caplog.text.count("cannot be listed as a live worker") == 1
    db.sql("alter table tenure.worker_away rename to worker")
    db.sql("alter view tenure.live_worker_away rename to live_worker")


@pytest.mark.usefixtures("soon")
async def test_a_write_that_waits_delays_neither_claims_nor_heartbeats(
    app: App, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.worker.presence._TIMEOUT_S", 0.5)
    going, done = asyncio.Event(), asyncio.Event()

    @app.task(contract="reliability", heartbeat=10)
    async def work() -> None:
        going.set()
        await done.wait()

    async with working(app, name="w1", upkeep=False) as worker:
        await until(lambda: db.value("select count(*) from tenure.worker") == 1)
        with db.connection.transaction():
            db.sql("lock table tenure.worker in access exclusive mode")
            presence = worker._presence
            assert presence is not None
            await until(lambda: presence.rounds_failed >= 1)
            job = await work.enqueue()
            await asyncio.wait_for(going.wait(), 60)
            beats = worker._heartbeats.sent
            worker._heartbeats.check_soon(job.id)
            await until(lambda: worker._heartbeats.sent > beats)
        done.set()
        await app.result(job, timeout=60)


async def test_dead_workers_leave_and_those_that_hold_a_lease_stay(store: Store, db: Harness) -> None:
    await store.workers.enter([idle("alive"), idle("dead"), idle("busy")])
    await store.enqueue(NewJob("send", queue="mail"))
    await store.claim(queues=["mail"], worker="busy")
    db.sql("update tenure.worker set last_seen_at = now() - interval '3 minutes' where name <> 'alive'")
    assert [one.worker_id for one in await store.workers.list()] == ["alive", "busy"], "before upkeep comes, too"
    assert await store.workers.forget() == 1
    assert [one["name"] for one in db.sql("select name from tenure.worker order by name")] == ["alive", "busy"]


async def test_whoever_holds_jobs_is_listed_without_a_row(store: Store) -> None:
    await store.enqueue_many([NewJob("send", queue="mail")] * 2)
    await store.claim(queues=["mail"], worker="theirs", limit=2)
    await store.workers.enter([idle("w1")])
    theirs, ours = await store.workers.list()
    assert (theirs.worker_id, theirs.held, theirs.queues, theirs.last_seen_at) == ("theirs", 2, None, None)
    assert (ours.worker_id, ours.held, ours.queues) == ("w1", 0, ["mail"])


async def test_a_stopping_worker_leaves_its_successor_of_the_same_name_alone(store: Store) -> None:
    before, after = idle(pid=1, host="a"), idle(pid=2, host="a")
    await store.workers.enter([before])
    await store.workers.enter([after])
    await store.workers.leave(before)
    assert [one.pid for one in await store.workers.list()] == [2]
    await store.workers.leave(after)
    assert await store.workers.list() == []


async def test_saying_that_many_live_is_one_statement_and_stays_on_its_pages(store: Store, db: Harness) -> None:
    many = [idle(f"w{n}", declares=()) for n in range(200)]
    await store.workers.enter(many)
    for _ in range(3):
        await store.workers.see(many)
    db.sql("select pg_stat_force_next_flush()")
    await until(lambda: db.value("select n_tup_upd from pg_stat_user_tables where relname = 'worker'") >= 600)
    moved = db.one("select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'worker'")
    assert moved["n_tup_hot_upd"] >= 0.5 * moved["n_tup_upd"]


async def test_two_processes_of_one_application_are_two_workers(dsn: str, db: Harness) -> None:
    async with (
        steady(dsn) as app,
        working(app, name="a", upkeep=False, queues=["mail"]),
        working(app, name="b", upkeep=False, queues=["mail"]),
    ):
        await until(lambda: db.value("select count(*) from tenure.worker") == 2)
    assert db.value("select count(*) from tenure.worker") == 0
