"""A misspelt queue is noticed where it is enqueued: one warning, beside the enqueue and never in its way."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tenure.app import App
from tenure.jobs.live_worker import LiveWorker
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.worker.working import steady, until


@pytest_asyncio.fixture
async def app(dsn: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    """An application with a task of queue `mail`, whose log is kept. One look may take, and counts for, very long."""
    monkeypatch.setattr("tenure.client.seen_workers.EVERY_S", 3_600.0)
    monkeypatch.setattr("tenure.client.seen_workers._TIMEOUT_S", 60.0)
    caplog.set_level(logging.INFO, "tenure")
    async with steady(dsn) as app:

        @app.task(queue="mail")
        async def send() -> None: ...

        yield app


async def looked(app: App) -> None:
    """Wait until what was enqueued has been compared with the live workers."""
    await until(lambda: app._seen_workers._reading is not None and app._seen_workers._reading.done())


def worker(**given: object) -> LiveWorker:
    """A worker of the queue `mail` that knows `send`."""
    return LiveWorker(**{"name": "w", "queues": ("mail",), "contracts": ("standard",), "types": ("send",), **given})  # type: ignore[arg-type]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was warned of."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_misspelt_queue_is_warned_of_once(app: App, store: Store, caplog: pytest.LogCaptureFixture) -> None:
    await store.workers.enter([worker()])
    misspelt = app.tasks["send"].options(queue="mial")
    await misspelt.enqueue()
    await looked(app)
    await misspelt.enqueue()
    await app.enqueue_many(misspelt.call() for _ in range(3))
    (said,) = warnings(caplog)
    assert "no live worker takes standard jobs from queue mial" in said
    assert "live workers take from: mail" in said


async def test_what_a_live_worker_takes_is_not_warned_of(
    app: App, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    await store.workers.enter([worker()])
    await app.tasks["send"].enqueue()
    await looked(app)
    await app.tasks["send"].enqueue()
    assert warnings(caplog) == []


async def test_a_type_that_no_worker_of_the_queue_knows_is_warned_of(
    app: App, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    await store.workers.enter([worker(types=("receive",))])
    await app.tasks["send"].enqueue()
    await looked(app)
    (said,) = warnings(caplog)
    assert "no live worker of queue mail knows type send" in said


async def test_before_the_first_worker_is_started_nothing_is_warned_of(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    await app.tasks["send"].enqueue()
    await looked(app)
    await app.tasks["send"].enqueue()
    assert warnings(caplog) == []
    assert caplog.text.count("no worker is live") == 1


async def test_what_was_enqueued_before_the_first_worker_is_warned_of_once_workers_live(
    app: App, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    misspelt = app.tasks["send"].options(queue="mial")
    await misspelt.enqueue()
    await looked(app)
    assert (warnings(caplog), caplog.text.count("no worker is live")) == ([], 1)
    await store.workers.enter([worker()])
    for _ in range(2):
        app._seen_workers._fresh_until = 0.0  # half a minute later
        await misspelt.enqueue()
        await looked(app)
    (said,) = warnings(caplog)
    assert "no live worker takes standard jobs from queue mial" in said
    assert caplog.text.count("no worker is live") == 1


async def test_an_enqueue_does_not_wait_for_the_look_and_a_failed_look_says_nothing(
    app: App, db: Harness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.client.seen_workers._TIMEOUT_S", 0.2)
    with db.connection.transaction():
        db.sql("lock table tenure.worker in access exclusive mode")
        await app.tasks["send"].enqueue()
        assert app._seen_workers._reading is not None
        assert not app._seen_workers._reading.done(), "it has only begun"
        assert db.value("select count(*) from tenure.job") == 1
        await looked(app)
    assert warnings(caplog) == []


async def test_the_workers_are_looked_up_once_for_many_enqueues(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    local = await app._client()
    takers = local.takers

    async def counted() -> object:
        nonlocal looks
        looks += 1
        return await takers()

    monkeypatch.setattr(local, "takers", counted)
    for n in range(20):
        await app.tasks["send"].options(queue=f"q{n}").enqueue()
    await looked(app)
    await app.tasks["send"].enqueue()
    assert looks == 1
