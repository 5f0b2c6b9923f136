"""Which database does a command work on: the one it was told, DATABASE_URL, or the embedded one in .tenure/."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tenure.settings import Settings

if TYPE_CHECKING:
    from tenure.postgres.store import Store

T = TypeVar("T")


@contextmanager
def database(url: str | None) -> Iterator[str]:
    """The address of the database, which is held while the command runs."""
    given = url or Settings.load().database_url
    if given is not None:
        yield given
        return
    from tenure.embedded import Cluster

    with Cluster(Path(".tenure")) as cluster:
        yield cluster.dsn


def with_store(url: str | None, call: Callable[[Store], Awaitable[T]]) -> T:
    """What this call of the store answers; the store has one connection, and this process's settings."""
    from tenure.postgres.store import Store

    settings = Settings.load()

    async def run(dsn: str) -> T:
        async with Store.open(
            dsn, numbers=settings.numbers, max_bytes=settings.max_payload_bytes, connections=1, wake=settings.wakeups
        ) as store:
            return await call(store)

    with database(url) as dsn:
        return asyncio.run(run(dsn))
