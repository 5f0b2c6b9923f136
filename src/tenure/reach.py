"""The way to the database, or to the dispatcher before it: which one it is, and connections for whoever asks.

Connections belong to the event loop that opened them, so each loop has its own; synchronous code uses one that runs in
the background. Without any address the embedded PostgreSQL in `.tenure/` is started and its schema made. With a
dispatcher's there is no database here, and nothing of its driver is loaded.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tenure.errors import BadInput, TenureError
from tenure.local import Local
from tenure.settings import Settings

if TYPE_CHECKING:
    from tenure.embedded import Cluster
    from tenure.http.client import Remote

    #: Both have the same verbs.
    Way = Local | Remote

T = TypeVar("T")


class Reach:
    """Connections for every loop of this process, opened when they are first needed."""

    def __init__(self, url: str | None, settings: Settings) -> None:
        self._url = url
        self._settings = settings
        #: Whether a dispatcher stands between this process and the database.
        self.is_remote = settings.dispatcher_url is not None
        self._cluster: Cluster | None = None
        self._changing = threading.Lock()
        self._locals: dict[asyncio.AbstractEventLoop, asyncio.Task[Way]] = {}
        #: The process and the loop in which synchronous code is served.
        self._background: tuple[int, asyncio.AbstractEventLoop] | None = None

    def url(self) -> str:
        """The address of the database; starts the embedded one where there is no other. Refused with a dispatcher."""
        if self.is_remote:
            raise BadInput(
                f"this needs the database itself, and here is only the dispatcher at {self._settings.dispatcher_url}. "
                "Next: run it where the database is, without TENURE_DISPATCHER_URL"
            )
        if self._url is not None:
            return self._url
        with self._changing:
            if self._cluster is None:
                from tenure.embedded import Cluster
                from tenure.postgres.migrate import migrate

                cluster = Cluster(Path(".tenure"))
                cluster.acquire()
                self._cluster = cluster
                atexit.register(self._let_go)
                migrate(cluster.dsn)
            return self._cluster.dsn

    async def open(self, connections: int = 4) -> Way:
        """Connections for this loop alone; close them."""
        settings = self._settings
        if settings.dispatcher_url is not None:
            from tenure.http.client import Remote

            return Remote(settings.dispatcher_url, settings.key, max_bytes=settings.max_payload_bytes)
        from tenure.postgres.store import Store

        url = await asyncio.to_thread(self.url)
        store = await Store.connect(
            url, numbers=settings.numbers, max_bytes=settings.max_payload_bytes, connections=connections,
            wake=settings.wakeups,
        )  # fmt: skip
        return Local(store, settings.direct_url or url)

    async def local(self) -> Way:
        """This loop's shared connections; the first caller opens them, and the others wait for it."""
        loop = asyncio.get_running_loop()
        opening = self._locals.get(loop)
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception())):
            for other in [other for other in self._locals if other.is_closed()]:
                _abandon(self._locals.pop(other))
            opening = self._locals[loop] = loop.create_task(self.open())
        return await asyncio.shield(opening)

    def wait(self, said: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the background loop and wait for it, in whatever thread the caller is."""
        with self._changing:
            if self._background is None or self._background[0] != os.getpid():  # a fork has no threads of its parent
                loop = asyncio.new_event_loop()
                threading.Thread(target=loop.run_forever, name="tenure-sync", daemon=True).start()
                self._background = (os.getpid(), loop)
                atexit.register(self._end_background)
            loop = self._background[1]
        return asyncio.run_coroutine_threadsafe(said, loop).result()

    async def close(self) -> None:
        """Close this loop's connections, those of synchronous code, and let the embedded PostgreSQL go."""
        opening = self._locals.pop(asyncio.get_running_loop(), None)
        if opening is not None:
            await _close(opening)
        await asyncio.to_thread(self._end_background)
        await asyncio.to_thread(self._let_go)

    def _end_background(self) -> None:
        with self._changing:
            pid, loop = self._background or (0, None)
            self._background = None
        if loop is None or pid != os.getpid():
            return
        there = self._locals.pop(loop, None)
        if there is not None:
            with contextlib.suppress(Exception):
                asyncio.run_coroutine_threadsafe(_close(there), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)

    def _let_go(self) -> None:
        """Release the embedded PostgreSQL; the last of all its holders stops it."""
        with self._changing:
            cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.release()


async def _close(opening: asyncio.Task[Way]) -> None:
    with contextlib.suppress(TenureError):  # one that could not be opened need not be closed
        await (await opening).close()


def _abandon(opening: asyncio.Task[Way]) -> None:
    """Let the connections of a loop go that is closed, and can close nothing any more."""
    if opening.done() and not opening.cancelled() and opening.exception() is None:
        opening.result().abandon()
