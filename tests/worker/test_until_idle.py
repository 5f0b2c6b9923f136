"""A worker that runs until it is idle, as `testing.drain` does."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import psycopg
import pytest

from tenure.app import App
from tenure.client.direct import DirectClient
from tests.harness import Harness
from tests.worker.working import until


async def test_a_job_that_ends_during_a_poll_and_makes_another_one_does_not_end_the_worker(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    begun, polled = asyncio.Event(), asyncio.Event()
    due = DirectClient.due

    async def late(self: DirectClient, *args: Any) -> list[str]:
        """Poll; the answer of the poll beside the first job comes when that job has ended."""
        found = await due(self, *args)
        if begun.is_set() and not polled.is_set():
            polled.set()
            await until(lambda: worker.counts["succeeded"] > 0)
        return found

    monkeypatch.setattr(DirectClient, "due", late)

    @app.task
    async def step(n: int) -> None:
        ran.append(n)
        if n == 1:
            begun.set()
            await polled.wait()
            await step.enqueue(2)

    worker = app.worker(poll=0.05, upkeep=False, wakeups=False)
    await step.enqueue(1)
    await worker.run(until_idle=True, handle_signals=False)
    assert ran == [1, 2]


async def _two_nodes(app: App) -> list[str]:
    """Start a flow of two nodes; returns what has run, as it grows."""
    ran: list[str] = []

    @app.task
    async def first() -> None:
        ran.append("first")

    @app.task
    async def second() -> None:
        ran.append("second")

    flow = app.flow("two")
    flow.node(second.call(), after=[flow.node(first.call())])
    await flow.start()
    return ran


_LOCK = "select from tenure.flow for update"
_ENDS = "select count(*) from tenure.flow_end"


async def test_a_flow_that_another_process_works_on_when_its_job_ends_is_run_to_its_end(
    app: App, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = await _two_nodes(app)
    catch_up, found = DirectClient.catch_up_flows, list[datetime | None]()

    async def seen(self: DirectClient, before: datetime | None) -> datetime | None:
        found.append(await catch_up(self, before))
        return found[-1]

    monkeypatch.setattr(DirectClient, "catch_up_flows", seen)
    worker = app.worker(poll=0.05, upkeep=False, wakeups=False)
    with psycopg.connect(dsn) as other:
        other.execute(_LOCK)
        running = asyncio.create_task(worker.run(until_idle=True, handle_signals=False))
        await until(lambda: len(found) > 1 or running.done())
        assert not running.done()
        other.rollback()
    await running
    assert ran == ["first", "second"]
    assert found[0] is not None
    assert found[-1] is None


async def test_a_node_that_another_process_starts_just_behind_the_last_poll_is_run(
    app: App, dsn: str, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = await _two_nodes(app)
    due = DirectClient.due
    with psycopg.connect(dsn) as other:
        other.execute(_LOCK)

        async def before(self: DirectClient, *args: Any) -> list[str]:
            """Poll; the flow goes on just behind the first poll that finds nothing."""
            found = await due(self, *args)
            if db.value(_ENDS):
                other.rollback()
                await self.store.flows.advance()
            return found

        monkeypatch.setattr(DirectClient, "due", before)
        worker = app.worker(poll=3_600, upkeep=False, wakeups=False)
        await worker.run(until_idle=True, handle_signals=False)
    assert ran == ["first", "second"]


async def test_a_flow_that_cannot_go_on_does_not_keep_a_worker_from_its_end(
    app: App, db: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    ran = await _two_nodes(app)
    db.sql("alter table tenure.flow_node add constraint no_second check (state = 'waiting' or name <> 'second')")
    await app.worker(poll=0.05, upkeep=False, wakeups=False).run(until_idle=True, handle_signals=False)
    assert ran == ["first"]
    assert "cannot be advanced" in caplog.text
