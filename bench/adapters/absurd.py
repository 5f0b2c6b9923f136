"""absurd: concurrency 50, polling every 50 ms. It cannot enqueue in batches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import absurdctl
import psycopg
from absurd_sdk import AsyncAbsurd

from bench.adapters.protocol import Producer, answer
from bench.adapters.protocol import touch as begun


def application(address: str) -> AsyncAbsurd:
    """The application with its one task."""
    app = AsyncAbsurd(address, queue_name="touch")

    @app.register_task(name="touch")
    async def touch(params: Any, _: Any) -> None:
        begun(params["n"])

    return app


async def setup(address: str) -> None:
    """Make the schema, which its tool carries, and the queue."""
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(absurdctl.BUNDLED_SCHEMA_SQL)
    app = application(address)
    await app.create_queue("touch")
    await app.close()


async def work(address: str) -> None:
    """Run a worker."""
    await application(address).start_worker(concurrency=50, poll_interval=0.05)


@asynccontextmanager
async def producing(address: str) -> AsyncIterator[Producer]:
    """Bulk one by one, which is all there is."""
    app = application(address)

    async def one(n: int) -> None:
        await app.spawn("touch", {"n": n})

    async def many(numbers: range) -> None:
        for n in numbers:
            await one(n)

    yield Producer(many, one)
    await app.close()


if __name__ == "__main__":
    answer(setup, work, producing)
