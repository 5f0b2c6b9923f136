"""Which database does a command work on: the one it was told, DATABASE_URL, or the embedded one in .tenure/."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tenure.settings import Settings

if TYPE_CHECKING:
    from tenure.postgres.store import Store

T = TypeVar("T")
_EMBEDDED = Path(".tenure")


@contextmanager
def database(url: str | None, *, migrated: bool = True) -> Iterator[str]:
    """The address of the database, which is held while the command runs; the embedded one has its schema."""
    given = url or Settings.load().database_url
    if given is not None:
        yield given
        return
    from tenure.embedded import Cluster

    cluster = Cluster(_EMBEDDED)
    with told_if_made():
        cluster.acquire()
    try:
        if migrated:
            from tenure.postgres.migrate import migrate

            migrate(cluster.dsn)  # it is nobody else's to set up
        yield cluster.dsn
    finally:
        cluster.release()


@contextmanager
def told_if_made() -> Iterator[None]:
    """Say on stderr where an embedded PostgreSQL is made meanwhile: in the wrong directory nobody expects one."""
    data = _EMBEDDED.resolve() / "data"
    was_there = data.exists()
    yield
    if data.exists() and not was_there:
        print(f"made a PostgreSQL in {data.parent}; set DATABASE_URL to use another", file=sys.stderr, flush=True)


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
