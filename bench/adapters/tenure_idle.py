"""Tenure with its defaults: fence, log, heartbeats, upkeep. `setup`, `worker` or `enqueue`, on the named database."""

from __future__ import annotations

import asyncio
import sys
import time

import tenure
from tenure.postgres.migrate import migrate


def application(dsn: str) -> tenure.App:
    """The application with its one task."""
    app = tenure.App(dsn)

    @app.task
    async def touch(n: int) -> None:
        print(n, time.monotonic(), flush=True)

    return app


async def enqueue(dsn: str, count: int, gap: float) -> None:
    """Make a job from time to time, and say when that began."""
    async with application(dsn) as app:
        for n in range(count):
            await asyncio.sleep(gap)
            print(n, time.monotonic(), flush=True)
            await app.tasks["touch"].enqueue(n)


if __name__ == "__main__":
    role, dsn, *rest = sys.argv[1:]
    if role == "setup":
        migrate(dsn)
    elif role == "worker":
        application(dsn).run_worker(concurrency=50)
    else:
        asyncio.run(enqueue(dsn, int(rest[0]), float(rest[1])))
