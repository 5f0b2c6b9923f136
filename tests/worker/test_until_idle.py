"""A worker that runs until it is idle, as `testing.drain` does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenure.app import App
from tenure.client.direct import DirectClient
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
