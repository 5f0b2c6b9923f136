"""Loops that run for the length of a test, and jobs for them to find."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

import pytest

from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tenure.upkeep import Periods, Report, Upkeep
from tenure.upkeep.loops import Round
from tests.harness import Harness

#: Rounds that a test need not wait for.
QUICK = Periods(look=0.1, extend=0.2, forget=0.2, retire=0.2, vacuum=0.2, vacuum_few=0.2, expired=0.2)


class Observed(Upkeep):
    """Upkeep whose rounds can be waited for."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        #: The rounds of each part that have ended, however; those that came to a report; and to one of a trouble.
        self.ended, self.reported, self.troubled = Counter[str](), Counter[str](), Counter[str]()
        self.tasks: dict[str, asyncio.Task[Any] | None] = {}

    async def _try(self, name: str, period: float, work: Round) -> float | None:
        async def noted() -> Report | None:
            report = await work()
            self.reported[name] += report is not None
            self.troubled[name] += report is not None and report.trouble is not None
            return report

        self.tasks[name] = asyncio.current_task()
        try:
            return await super()._try(name, period, noted)
        finally:
            self.ended[name] += 1

    async def another(self, *names: str, times: int = 1) -> None:
        """Wait until each of these parts has begun and ended so many rounds from now on."""
        await self._more(self.ended, names, times)

    async def another_report(self, *names: str, times: int = 1) -> None:
        """The same for rounds that came to a report: it was the part's turn, and it did not fail."""
        await self._more(self.reported, names, times)

    async def _more(self, counted: Counter[str], names: Sequence[str], times: int) -> None:
        # One of each may be under way, which began before.
        wanted = {name: counted[name] + times + 1 for name in names}
        await until(lambda: all(counted[name] >= count for name, count in wanted.items()))


@asynccontextmanager
async def running(*loops: Upkeep) -> AsyncIterator[None]:
    """Run these loops around a block; one that ends by itself is a fault."""
    tasks = [asyncio.create_task(each.run()) for each in loops]
    try:
        yield
        assert not [task for task in tasks if task.done()], "the loops ended by themselves"
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def until(true: Callable[[], bool], within: float = 60.0) -> float:
    """Wait until this is true; how long it took. The limit only keeps a test from hanging."""
    begun = time.monotonic()
    while not true():
        assert time.monotonic() - begun < within, "it never came to that"
        await asyncio.sleep(0.01)
    return time.monotonic() - begun


async def expired(
    store: Store, db: Harness, count: int = 1, contract: str = "standard", lease_ms: int | None = None
) -> list[int]:
    """Jobs whose holders died."""
    queue = f"dying {uuid4()}"
    await store.enqueue_many([NewJob("t", contract=contract, queue=queue) for _ in range(count)])
    ids = [job.id for job in await store.claim(contract, [queue], worker="w", limit=count)]
    assert len(ids) == count
    if lease_ms is not None:
        db.sql("update tenure.job set lease_ms = %s where id = any(%s)", lease_ms, ids)
    db.expire(*ids)
    return ids


def ready(db: Harness, ids: list[int]) -> bool:
    """Whether all these jobs can be claimed again."""
    found = db.value("select count(*) from tenure.job where id = any(%s) and role = 'ready'", ids)
    return bool(found == len(ids))


def lines(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    """What was said of a part of upkeep."""
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith(f"{part}: ")]
