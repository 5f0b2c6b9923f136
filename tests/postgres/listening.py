"""Ears for tests of wake-ups: a bare connection that listens, and a listener that runs beside the test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg

from tenure.postgres.listen import Listener


@asynccontextmanager
async def bare_ear(dsn: str) -> AsyncIterator[Callable[[float], Any]]:
    """A connection that listens; asked for so many seconds, it gives what has come until then."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute("listen tenure")

        async def come(seconds: float) -> list[str]:
            return [note.payload async for note in connection.notifies(timeout=seconds)]

        yield come


class Heard:
    """What a listener heard, and when."""

    def __init__(self) -> None:
        self.names: list[tuple[str, str]] = []
        self.at: list[float] = []
        self._came = asyncio.Event()

    def __call__(self, contract: str, queue: str) -> None:
        self.names.append((contract, queue))
        self.at.append(time.monotonic())
        self._came.set()

    async def until(self, number: int, seconds: float = 20.0) -> None:
        """Wait until so many wake-ups were heard."""
        async with asyncio.timeout(seconds):
            while len(self.names) < number:
                self._came.clear()
                await self._came.wait()


@asynccontextmanager
async def listening(dsn: str, **options: Any) -> AsyncIterator[tuple[Listener, Heard]]:
    """A listener that runs, and hears by now."""
    heard = Heard()
    listener = Listener(dsn, heard, **options)
    task = asyncio.create_task(listener.run())
    try:
        await heard.until(1)
        yield listener, heard
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
