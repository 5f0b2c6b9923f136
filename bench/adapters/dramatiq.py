"""Dramatiq on Redis with 8 threads in one process. It cannot enqueue in batches."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.adapters.protocol import Producer, answer
from bench.adapters.protocol import touch as begun


def actor_at(address: str) -> dramatiq.Actor:
    """The one kind of job."""
    dramatiq.set_broker(RedisBroker(url=f"unix://{address}"))

    @dramatiq.actor
    def touch(n: int) -> None:
        begun(n)

    return touch


def setup(_: str) -> None:
    """Redis needs nothing."""


def work(address: str) -> None:
    """Run a worker's threads."""
    dramatiq.Worker(actor_at(address).broker, worker_threads=8).start()
    threading.Event().wait()


@asynccontextmanager
async def producing(address: str) -> AsyncIterator[Producer]:
    """Bulk one by one, which is all there is."""
    touch = actor_at(address)

    async def one(n: int) -> None:
        touch.send(n)

    async def many(numbers: range) -> None:
        for n in numbers:
            touch.send(n)

    yield Producer(many, one)


if __name__ == "__main__":
    answer(setup, work, producing)
