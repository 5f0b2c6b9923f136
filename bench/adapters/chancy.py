"""Chancy with its asyncio executor, concurrency 2,000, and polling as often as it can."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from chancy import Chancy, Queue, Worker, job

from bench.adapters.protocol import Producer, answer
from bench.adapters.protocol import touch as begun


@job()
async def touch(*, n: int) -> None:
    """The one kind of job."""
    begun(n)


async def setup(address: str) -> None:
    """Make the schema and the queue."""
    async with Chancy(address) as chancy:
        await chancy.migrate()
        await chancy.declare(
            Queue(
                "default", concurrency=2_000, executor=Chancy.Executor.Async, polling_interval=1, eager_polling=True
            )
        )  # fmt: skip


async def work(address: str) -> None:
    """Run a worker."""
    async with Chancy(address) as chancy, Worker(chancy) as worker:
        await worker.wait_for_shutdown()


@asynccontextmanager
async def producing(address: str) -> AsyncIterator[Producer]:
    """Bulk by `push_many`, 1,000 a transaction."""
    async with Chancy(address) as chancy:

        async def many(numbers: range) -> None:
            async for _ in chancy.push_many([touch.job.with_kwargs(n=n) for n in numbers]):
                pass

        async def one(n: int) -> None:
            await chancy.push(touch.job.with_kwargs(n=n))

        yield Producer(many, one)


if __name__ == "__main__":
    answer(setup, work, producing)
