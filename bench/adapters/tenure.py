"""Tenure through its public library, with all its defaults on: fence, log, heartbeats, upkeep, wake-ups."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvloop

import tenure
from bench.adapters.protocol import Producer, answer
from bench.adapters.protocol import touch as begun
from tenure.postgres.migrate import migrate


def application(address: str) -> tenure.App:
    """The application with its one task."""
    app = tenure.App(address)

    @app.task
    async def touch(n: int) -> None:
        begun(n)

    return app


def setup(address: str) -> None:
    """Make the schema."""
    migrate(address)


def work(address: str) -> None:
    """Run a worker, on its own uvloop."""
    application(address).run_worker(concurrency=2_000)


@asynccontextmanager
async def producing(address: str) -> AsyncIterator[Producer]:
    """Bulk by `enqueue_many` in its default batches of 1,000."""
    async with application(address) as app:
        task = app.tasks["touch"]

        async def many(numbers: range) -> None:
            await app.enqueue_many(task.call(n) for n in numbers)

        async def one(n: int) -> None:
            await task.enqueue(n)

        yield Producer(many, one)


if __name__ == "__main__":
    answer(setup, work, producing, run=uvloop.run)
