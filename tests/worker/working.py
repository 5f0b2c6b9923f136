"""A worker in this process, for as long as a block lasts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tenure.app import App
from tenure.settings import Settings
from tenure.worker import Worker

#: The shortest leases that the contracts allow, and no waiting between tries.
QUICK = {
    "standard": {"lease_ms": 2_000, "backoff_base_ms": 1, "backoff_cap_ms": 1},
    "phase27": {"lease_ms": 2_000, "backoff_base_ms": 1, "backoff_cap_ms": 1},
    "dispatcher": {"lease_ms": 2_000, "backoff_base_ms": 1, "backoff_cap_ms": 1},
    "reliability": {"backoff_base_ms": 1, "backoff_cap_ms": 1},
    "simple": {"lease_ms": 2_000, "backoff_base_ms": 1, "backoff_cap_ms": 1},
    "gate_b2": {"lease_ms": 2_000, "backoff_base_ms": 1, "backoff_cap_ms": 1},
}


#: A lease that no test outlives: only `Harness.expire` ends it.
LEASE_S = 600.0
STEADY = {
    name: numbers | ({"lease_ms": round(LEASE_S * 1_000)} if "lease_ms" in numbers else {})
    for name, numbers in QUICK.items()
}


def quick(dsn: str, **options: Any) -> App:
    """An application on this database that loses no time."""
    return App(dsn, settings=Settings(database_url=dsn, numbers=QUICK), **options)


def steady(dsn: str, **options: Any) -> App:
    """The same with leases that run out only when a test says so."""
    return App(dsn, settings=Settings(database_url=dsn, numbers=STEADY), **options)


@asynccontextmanager
async def working(app: App, **options: Any) -> AsyncIterator[Worker]:
    """Run a worker until the block ends, then let it stop as a signal would."""
    worker = app.worker(**{"poll": 0.05, "grace": 30.0, **options})
    run = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        if not worker.stopping:
            worker.stop()
        await run


async def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for it; the limit only keeps a test from hanging."""
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit, "it did not come true in time"
        await asyncio.sleep(0.01)
