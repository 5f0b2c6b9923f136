"""awa-pg (its core is Rust): 256 workers, claims of 512, jobs made by COPY."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import awa

from bench.adapters.protocol import Producer, answer, batches
from bench.adapters.protocol import touch as begun


@dataclass
class Touch:
    """The one kind of job."""

    n: int


def connected(address: str) -> awa.AsyncClient:
    """A client; its driver wants a host in the address, although the socket is named later on."""
    return awa.AsyncClient(address.replace("@/", "@localhost/"))


async def setup(address: str) -> None:
    """Make the schema."""
    client = connected(address)
    await client.migrate()
    await client.install_queue_storage()  # what workers would choose by themselves at their first start


async def work(address: str) -> None:
    """Run a worker."""
    client = connected(address)

    @client.task(Touch, queue="touch")
    async def touch(job: Any) -> None:
        begun(job.args.n)

    await client.start([{"name": "touch", "max_workers": 256, "claim_batch_size": 512}])
    await asyncio.Event().wait()


@asynccontextmanager
async def producing(address: str) -> AsyncIterator[Producer]:
    """Bulk by `enqueue_many_copy`, 1,000 a call."""
    client = connected(address)

    async def many(numbers: range) -> None:
        for lot in batches(numbers):
            await client.enqueue_many_copy([Touch(n) for n in lot], queue="touch")

    async def one(n: int) -> None:
        await client.insert(Touch(n), queue="touch")

    yield Producer(many, one)


if __name__ == "__main__":
    answer(setup, work, producing)
