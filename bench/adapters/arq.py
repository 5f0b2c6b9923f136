"""arq: 100 jobs at once, polling every 50 ms, no results kept, uvloop. It cannot enqueue in batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvloop
from arq import Worker, create_pool
from arq.connections import RedisSettings

from bench.adapters.protocol import Producer, answer, batches
from bench.adapters.protocol import touch as begun


async def touch(_: Any, n: int) -> None:
    """The one kind of job."""
    begun(n)


def setup(_: str) -> None:
    """Redis needs nothing."""


async def work(address: str) -> None:
    """Run a worker."""
    reached = RedisSettings(unix_socket_path=address)
    await Worker([touch], redis_settings=reached, max_jobs=100, poll_delay=0.05, keep_result=0).async_run()


@asynccontextmanager
async def producing(address: str) -> AsyncIterator[Producer]:
    """Bulk by calls that run beside each other."""
    pool = await create_pool(RedisSettings(unix_socket_path=address))

    async def many(numbers: range) -> None:
        for lot in batches(numbers, 50):
            await asyncio.gather(*(pool.enqueue_job("touch", n) for n in lot))

    async def one(n: int) -> None:
        await pool.enqueue_job("touch", n)

    yield Producer(many, one)
    await pool.aclose()


if __name__ == "__main__":
    answer(setup, work, producing, run=uvloop.run)
