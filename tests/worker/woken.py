"""What workers that messages wake need: a real server of message queues, and a real dispatcher."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tenure.app import App
from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tenure.settings import Settings
from tenure.upkeep.publisher import Publisher
from tests.harness import Harness
from tests.http.conftest import serving
from tests.message_queues import MessageServer, message_server
from tests.worker.working import STEADY


@pytest.fixture(scope="module")
def sqs() -> Iterator[MessageServer]:
    """A server of message queues."""
    with message_server() as server:
        yield server


@pytest.fixture
def queue(sqs: MessageServer) -> str:
    """The address of a queue that hides messages for five minutes."""
    return sqs.make_queue(VisibilityTimeout="300")


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Receives that end soon: this server gives a message to one whose worker has gone, too."""
    monkeypatch.setattr("tenure.worker.worker.WAIT_S", 0)


@pytest.fixture
def dispatcher(dsn: str) -> Iterator[str]:
    """The address of a dispatcher whose leases only a test ends."""
    with serving(dsn, numbers=STEADY) as address:
        yield address


def through(url: str) -> App:
    """An application that knows a dispatcher alone."""
    return App(dispatcher_url=url, settings=Settings(), contract="dispatcher")


async def make(store: Store, task: str = "work", count: int = 1, **options: Any) -> list[int]:
    """Make tasks; returns their ids."""
    jobs = [NewJob(task, contract="dispatcher", **options) for _ in range(count)]
    return [made.job_id for made in await store.enqueue_many(jobs)]  # type: ignore[misc]


def status(db: Harness, task_id: int) -> str:
    """The status of a task."""
    return str(db.value("select status from tenure_dispatcher.tasks where task_id = %s", task_id))


@asynccontextmanager
async def publishing(store: Store, queue: str) -> AsyncIterator[Publisher]:
    """A publisher whose rounds the test runs."""
    publisher = Publisher(store, {"default": queue}, rewake_ms=60_000, round_s=60.0)
    async with publisher.connected():
        await publisher.register()
        yield publisher
