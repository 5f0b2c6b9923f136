"""Procrastinate, as its documents set it up: psycopg, LISTEN. `setup`, `worker` or `enqueue`, on the named database."""

from __future__ import annotations

import asyncio
import sys
import time

import procrastinate


def application(dsn: str) -> procrastinate.App:
    """The application with its one task."""
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn))

    @app.task(name="touch")
    async def touch(n: int) -> None:
        print(n, time.monotonic(), flush=True)

    return app


async def setup(dsn: str) -> None:
    """Make the schema."""
    async with application(dsn).open_async() as app:
        await app.schema_manager.apply_schema_async()


async def worker(dsn: str) -> None:
    """Say when each job begins."""
    async with application(dsn).open_async() as app:
        await app.run_worker_async(concurrency=50)


async def enqueue(dsn: str, count: int, gap: float) -> None:
    """Make a job from time to time, and say when that began."""
    async with application(dsn).open_async() as app:
        for n in range(count):
            await asyncio.sleep(gap)
            print(n, time.monotonic(), flush=True)
            await app.tasks["touch"].defer_async(n=n)


if __name__ == "__main__":
    role, dsn, *rest = sys.argv[1:]
    asyncio.run(
        {"setup": setup, "worker": worker}[role](dsn) if not rest else enqueue(dsn, int(rest[0]), float(rest[1]))
    )
