"""Ears for tests of wake-ups: a bare connection that listens, and a listener that runs beside the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

import psycopg

from tenure.postgres.listener import Listener
from tenure.postgres.store import Store


class Ear:
    """A connection that listens. PostgreSQL delivers in the order of commits, to the sender too."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def say(self, word: str) -> None:
        """Send a word of the test's own among the wake-ups."""
        await self._connection.execute("select pg_notify('tenure', %s)", [word])

    async def until(self, last: Callable[[str], bool]) -> list[str]:
        """What comes, until this word is among it."""
        came: list[str] = []
        while not any(map(last, came)):
            # To its end, each time: what arrived together would be lost with a generator that is left early.
            more = [note.payload async for note in self._connection.notifies(timeout=60, stop_after=1)]
            assert more, f"nothing more came after {came}"
            came += more
        return came

    async def come(self, store: Store | None = None) -> list[str]:
        """What has come, once this store has sent all its wake-ups."""
        if store is not None and (sender := store._engine.wakeups._sender) is not None:
            await asyncio.wait({sender})
        end = f"!{uuid4().hex}"
        await self.say(end)
        return [word for word in await self.until(end.__eq__) if word != end]


@asynccontextmanager
async def bare_ear(dsn: str) -> AsyncIterator[Ear]:
    """A connection that listens by now."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute("listen tenure")
        yield Ear(connection)


class Heard:
    """What a listener heard."""

    def __init__(self) -> None:
        self.names: list[tuple[str, str]] = []
        self._came = asyncio.Event()

    def __call__(self, contract: str, queue: str) -> None:
        self.names.append((contract, queue))
        self._came.set()

    async def until(self, number: int, seconds: float = 60.0) -> None:
        """Wait until so many wake-ups were heard."""
        async with asyncio.timeout(seconds):
            while len(self.names) < number:
                self._came.clear()
                await self._came.wait()


@asynccontextmanager
async def listening(dsn: str, **options: Any) -> AsyncIterator[tuple[Listener, Heard]]:
    """A listener that runs, and hears by now; however slow the machine is, it does not take itself for deaf."""
    heard = Heard()
    listener = Listener(dsn, heard, **{"patience": 60.0, **options})
    task = asyncio.create_task(listener.run())
    try:
        await heard.until(1)
        yield listener, heard
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
