"""PgQueuer, as its documents set it up: asyncpg, uvloop. `setup`, `worker` or `enqueue`, on the named database."""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import AsyncpgDriver, Job, PgQueuer, Queries


async def setup(dsn: str) -> None:
    """Make the schema."""
    connection = await asyncpg.connect(dsn)
    await Queries(AsyncpgDriver(connection)).install()


async def worker(dsn: str) -> None:
    """Say when each job begins."""
    queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(dsn)))

    @queue.entrypoint("touch")
    async def touch(job: Job) -> None:
        print(int(job.payload or b"0"), time.monotonic(), flush=True)

    await queue.run(dequeue_timeout=timedelta(seconds=30), batch_size=10)


async def enqueue(dsn: str, count: int, gap: float) -> None:
    """Make a job from time to time, and say when that began."""
    queries = Queries(AsyncpgDriver(await asyncpg.connect(dsn)))
    for n in range(count):
        await asyncio.sleep(gap)
        print(n, time.monotonic(), flush=True)
        await queries.enqueue("touch", str(n).encode())


if __name__ == "__main__":
    role, dsn, *rest = sys.argv[1:]
    said = {"setup": setup, "worker": worker}[role](dsn) if not rest else enqueue(dsn, int(rest[0]), float(rest[1]))
    uvloop.run(said)
