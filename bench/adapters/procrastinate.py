"""Procrastinate on psycopg with LISTEN, concurrency 50 and a pool of 20."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import procrastinate

from bench.adapters.protocol import Producer, answer, batches
from bench.adapters.protocol import touch as begun


def application(address: str) -> procrastinate.App:
    """The application with its one task."""
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=address, min_size=1, max_size=20))

    @app.task(name="touch")
    async def touch(n: int) -> None:
        begun(n)

    return app


async def setup(address: str) -> None:
    """Make the schema."""
    async with application(address).open_async() as app:
        await app.schema_manager.apply_schema_async()


async def work(address: str) -> None:
    """Run a worker."""
    async with application(address).open_async() as app:
        await app.run_worker_async(concurrency=50)


@asynccontextmanager
async def producing(address: str) -> AsyncIterator[Producer]:
    """Bulk by `batch_defer`, 1,000 a call."""
    async with application(address).open_async() as app:
        task = app.tasks["touch"]

        async def many(numbers: range) -> None:
            for lot in batches(numbers):
                await task.batch_defer_async(*({"n": n} for n in lot))

        async def one(n: int) -> None:
            await task.defer_async(n=n)

        yield Producer(many, one)


if __name__ == "__main__":
    answer(setup, work, producing)
