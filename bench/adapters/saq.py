"""SAQ on Redis or on PostgreSQL, as the address says: concurrency 50, uvloop. It cannot enqueue in batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvloop
from redis.asyncio import Redis
from saq import Worker
from saq.queue import Queue
from saq.queue.postgres import PostgresQueue
from saq.queue.redis import RedisQueue

from bench.adapters.protocol import Producer, answer, batches
from bench.adapters.protocol import touch as begun


def queue_at(address: str) -> Queue:
    """The one queue."""
    if address.startswith("postgresql"):
        return PostgresQueue.from_url(address, name="touch")
    return RedisQueue(Redis.from_url(f"unix://{address}"), name="touch")


async def touch(_: Any, *, n: int) -> None:
    """The one kind of job."""
    begun(n)


async def setup(address: str) -> None:
    """Make the schema, where there is one."""
    queue = queue_at(address)
    await queue.connect()
    await queue.disconnect()


async def work(address: str) -> None:
    """Run a worker."""
    queue = queue_at(address)
    await queue.connect()
    await Worker(queue, functions=[("touch", touch)], concurrency=50).start()


@asynccontextmanager
async def producing(address: str) -> AsyncIterator[Producer]:
    """Bulk by calls that run beside each other."""
    queue = queue_at(address)
    await queue.connect()

    async def many(numbers: range) -> None:
        for lot in batches(numbers):
            await asyncio.gather(*(queue.enqueue("touch", n=n) for n in lot))

    async def one(n: int) -> None:
        await queue.enqueue("touch", n=n)

    yield Producer(many, one)
    await queue.disconnect()


if __name__ == "__main__":
    answer(setup, work, producing, run=uvloop.run)
