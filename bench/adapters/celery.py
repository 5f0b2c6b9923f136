"""Celery on Redis: the solo pool, 256 prefetched, no results. It cannot enqueue in batches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from celery import Celery

from bench.adapters.protocol import Producer, answer
from bench.adapters.protocol import touch as begun


def application(address: str) -> Celery:
    """The application with its one task."""
    app = Celery("touch", broker=f"redis+socket://{address}")
    app.conf.update(worker_prefetch_multiplier=256, task_ignore_result=True, worker_redirect_stdouts=False)

    @app.task(name="touch")
    def touch(n: int) -> None:
        begun(n)

    return app


def setup(_: str) -> None:
    """Redis needs nothing."""


def work(address: str) -> None:
    """Run a worker."""
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR"]
    application(address).worker_main(["--quiet", "worker", "--pool=solo", *quiet])


@asynccontextmanager
async def producing(address: str) -> AsyncIterator[Producer]:
    """Bulk one by one on one connection."""
    app = application(address)
    with app.producer_or_acquire() as producer:

        async def one(n: int) -> None:
            app.tasks["touch"].apply_async((n,), producer=producer)

        async def many(numbers: range) -> None:
            for n in numbers:
                await one(n)

        yield Producer(many, one)


if __name__ == "__main__":
    answer(setup, work, producing)
