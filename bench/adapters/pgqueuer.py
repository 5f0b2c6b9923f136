"""PgQueuer on asyncpg and uvloop, with a pool of 10 and batches of 1,000."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import uvloop
from pgqueuer import Job, PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver

from bench.adapters.protocol import Producer, answer, batches
from bench.adapters.protocol import touch as begun


async def setup(address: str) -> None:
    """Make the schema."""
    await Queries(AsyncpgDriver(await asyncpg.connect(address))).install()


async def work(address: str) -> None:
    """Run a worker."""
    async with asyncpg.create_pool(address, min_size=10, max_size=10) as pool:
        queue = PgQueuer(AsyncpgPoolDriver(pool))

        @queue.entrypoint("touch")
        async def touch(job: Job) -> None:
            begun(int(job.payload or b"0"))

        await queue.run(batch_size=1_000)


@asynccontextmanager
async def producing(address: str) -> AsyncIterator[Producer]:
    """Bulk by `enqueue` with lists, 1,000 a call."""
    queries = Queries(AsyncpgDriver(await asyncpg.connect(address)))

    async def many(numbers: range) -> None:
        for lot in batches(numbers):
            await queries.enqueue(["touch"] * len(lot), [str(n).encode() for n in lot], [0] * len(lot))

    async def one(n: int) -> None:
        await queries.enqueue("touch", str(n).encode())

    yield Producer(many, one)


if __name__ == "__main__":
    answer(setup, work, producing, run=uvloop.run)
