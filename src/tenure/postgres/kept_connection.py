"""The kept connection: beside the pool of an engine, for statements that must start at once, and for wake-ups.

    a claim, a poll, a lone enqueue ─▶ free() ─┬ a connection ─▶ the statement, without the pool
                                               └ None: it is in use or lost ─▶ the pool, as for every other call
    the worker's listener ─▶ connection() ─▶ LISTEN on the same session

So the backend that PostgreSQL wakes for a notification is the one that gets the claim. Only calls that wait for no lock
use it: a notification is delivered between two statements. A lost connection is opened again in the background.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic

import psycopg

from tenure.postgres.connection_health import forget_use
from tenure.postgres.engine_connection import EngineConnection

#: Seconds between two attempts to open it again.
_RETRY_S = 0.5


class KeptConnection:
    """Opens one connection, and opens another when it is lost."""

    def __init__(self, open_connection: Callable[[], Awaitable[EngineConnection]]) -> None:
        self._open = open_connection
        self._connection: EngineConnection | None = None
        self._opening: asyncio.Task[EngineConnection] | None = None
        self._next_try = 0.0
        self._is_closed = False

    def free(self) -> EngineConnection | None:
        """The connection, where it is open and not in use; the caller takes its `in_use` before it awaits anything."""
        connection = self._connection
        if connection is None or connection.closed:
            if self._opening is None and not self._is_closed and monotonic() >= self._next_try:
                self._start_opening()
            return None
        return None if connection.in_use.locked() else connection

    async def connection(self) -> EngineConnection:
        """The connection, in use or not; opens it where it is lost. Raises the driver's error."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        if self._is_closed:
            raise psycopg.OperationalError("the engine is closed")
        return await asyncio.shield(self._opening or self._start_opening())

    def distrust(self) -> None:
        """Let the next call try the connection first: another one was lost."""
        if self._connection is not None:
            forget_use(self._connection)

    async def discard(self) -> None:
        """Close the connection when it is not in use; the next one may be to another server."""
        if (connection := self._connection) is not None:
            async with connection.in_use:
                await connection.close()

    async def close(self) -> None:
        """Close the connection for good."""
        self._is_closed = True
        if self._opening is not None:
            with suppress(psycopg.Error, OSError):
                await self._opening
        if self._connection is not None:
            await self._connection.close()

    def _start_opening(self) -> asyncio.Task[EngineConnection]:
        self._opening = asyncio.get_running_loop().create_task(self._reopen())
        # An error is for whoever waits; without anybody it is not logged, and a later call tries again.
        self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._opening

    async def _reopen(self) -> EngineConnection:
        try:
            self._connection = opened = await self._open()
            return opened
        finally:
            self._opening, self._next_try = None, monotonic() + _RETRY_S
