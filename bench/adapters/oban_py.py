"""oban-py on psycopg and uvloop, with a limit of 500 and its default pool of 10."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvloop
from oban import Oban, worker
from oban.schema import install

from bench.adapters.protocol import Producer, answer, batches, touch


@worker(queue="default")
class Touch:
    """The one kind of job."""

    async def process(self, job: Any) -> None:
        """Say that it began."""
        touch(job.args["n"])


async def setup(address: str) -> None:
    """Make the schema."""
    await install(await Oban.create_pool(address))


async def work(address: str) -> None:
    """Run a worker."""
    async with Oban(pool=await Oban.create_pool(address), queues={"default": 500}):
        await asyncio.Event().wait()


@asynccontextmanager
async def producing(address: str) -> AsyncIterator[Producer]:
    """Bulk by `enqueue_many`, 1,000 a call."""
    oban = Oban(pool=await Oban.create_pool(address))

    async def many(numbers: range) -> None:
        for lot in batches(numbers):
            await oban.enqueue_many([Touch.new({"n": n}) for n in lot])  # type: ignore[attr-defined]

    async def one(n: int) -> None:
        await oban.enqueue(Touch.new({"n": n}))  # type: ignore[attr-defined]

    yield Producer(many, one)


if __name__ == "__main__":
    answer(setup, work, producing, run=uvloop.run)
