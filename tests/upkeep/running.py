"""Loops that run for the length of a test, and jobs for them to find."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from uuid import uuid4

import pytest

from tenure.job import NewJob
from tenure.postgres.store import Store
from tenure.upkeep import Pace, Upkeep
from tests.harness import Harness

#: Rounds that a test need not wait for.
QUICK = Pace(look=0.1, extend=0.2, forget=0.2, retire=0.2, vacuum=0.2, tidy=0.2)


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


async def until(true: Callable[[], bool], within: float = 10.0) -> float:
    """Wait until this is true; how long it took."""
    begun = time.monotonic()
    while not true():
        assert time.monotonic() - begun < within, "it never came to that"
        await asyncio.sleep(0.01)
    return time.monotonic() - begun


async def expired(store: Store, db: Harness, count: int = 1, contract: str = "standard") -> list[int]:
    """Jobs whose holders died."""
    queue = f"dying {uuid4()}"
    await store.enqueue_many([NewJob("t", contract=contract, queue=queue) for _ in range(count)])
    ids = [job.id for job in await store.claim(contract, [queue], worker="w", limit=count)]
    assert len(ids) == count
    db.expire(*ids)
    return ids


def ready(db: Harness, ids: list[int]) -> bool:
    """Whether all these jobs can be claimed again."""
    found = db.value("select count(*) from tenure.job where id = any(%s) and role = 'ready'", ids)
    return bool(found == len(ids))


def lines(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    """What was said of a part of upkeep."""
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith(f"{part}: ")]
