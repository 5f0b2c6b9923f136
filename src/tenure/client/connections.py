"""Clients of an application: direct to the database, or through a dispatcher.

A client belongs to the event loop that opened it, so each loop has its own; synchronous code uses a loop that runs in a
background thread. Without an address the embedded PostgreSQL in `.tenure/` is started and its schema made. With the
address of a dispatcher no database driver is loaded.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from tenure.client.direct import DirectClient
from tenure.client.own_contracts import require_registered
from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import Contract
from tenure.errors import BadInput, TenureError, require_extra
from tenure.settings import Settings
from tenure.settings.parsers import parse_queue_url

if TYPE_CHECKING:
    from tenure.client.remote import RemoteClient
    from tenure.embedded import Cluster
    from tenure.sqs.inbox import Inbox

    #: Both have the same verbs.
    JobClient = DirectClient | RemoteClient

T = TypeVar("T")


#: The database that replaces every application's own while a test runs, and the connections to redirect.
_test_url: str | None = None
_all: WeakSet[Connections] = WeakSet()


@contextlib.contextmanager
def redirected(url: str) -> Iterator[None]:
    """Let every application of this process use this database, for tests; refused inside of another such block."""
    global _test_url
    if _test_url is not None:
        raise BadInput("every application uses a test database already. Next: leave that block first")
    try:
        _test_url = url
        _forget_all()
        yield
    finally:
        _test_url = None
        _forget_all()


def _forget_all() -> None:
    for connections in list(_all):
        connections.forget()


class Connections:
    """A client for each event loop of this process, opened at first use."""

    def __init__(
        self,
        url: str | None,
        settings: Settings,
        forgot: Callable[[], None],
        before_close: Callable[[], Awaitable[None]],
        contracts: Mapping[str, Contract] | None = None,
        import_target: Callable[[], str] = lambda: "module:app",
    ) -> None:
        """`forgot` is called when another database replaces this one, `before_close` in a loop whose client closes.

        `contracts` are the application's own, which the database must know; a command finds them by `import_target`.
        """
        self._url = url
        self._settings = settings
        self._forgot = forgot
        self._before_close = before_close
        self._contracts = contracts or {}
        self._import_target = import_target
        #: The test database that got the application's own contracts.
        self._registered_in: str | None = None
        self._cluster: Cluster | None = None
        self._changing = threading.Lock()
        self._clients: dict[asyncio.AbstractEventLoop, asyncio.Task[JobClient]] = {}
        #: The process and the loop in which synchronous code is served.
        self._background: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._ends_at_exit = False
        _all.add(self)

    @property
    def is_remote(self) -> bool:
        """Whether calls go through a dispatcher."""
        return self._settings.dispatcher_url is not None and _test_url is None

    def url(self) -> str:
        """The address of the database; starts the embedded one where that is allowed. Refused with a dispatcher."""
        if self.is_remote:
            raise BadInput(
                f"this needs a database connection, and only the dispatcher at {self._settings.dispatcher_url} is set. "
                "Next: run it beside the database, without TENURE_DISPATCHER_URL"
            )
        if (url := _test_url) is not None:
            self._register_in_test_database(url)
            return url
        if self._url is not None:
            return self._url
        with self._changing:
            if self._cluster is None:
                from tenure.embedded import acquire_default
                from tenure.postgres.migrate import migrate

                self._cluster = cluster = acquire_default(refused=self._settings.require_database)
                self._end_at_exit()
                migrate(cluster.dsn, {**BUILT_IN, **self._contracts})
            return self._cluster.dsn

    def _register_in_test_database(self, url: str) -> None:
        """Register the application's own contracts, if there are any and the database was made for tests."""
        with self._changing:
            if self._contracts and self._registered_in != url:
                from tenure.postgres.test_databases import register

                register(url, {**BUILT_IN, **self._contracts})
                self._registered_in = url

    def inbox(self, url: str) -> Inbox:
        """The inbox of a worker that this message queue wakes."""
        url = parse_queue_url("sqs", url)
        if not self.is_remote:
            raise BadInput(
                "a worker that a message queue wakes claims its tasks through a dispatcher. "
                "Next: give --dispatcher, or App(dispatcher_url=…)"
            )
        require_extra("sqs", "a worker that SQS wakes", "aiobotocore")
        from tenure.sqs.inbox import Inbox

        return Inbox(url)

    async def open(self, connections: int = 4, *, service: bool = False, inbox: Inbox | None = None) -> JobClient:
        """A client for the caller alone, who closes it. `service`: one connection is kept for heartbeats.

        `inbox`: the messages of a worker that a message queue wakes.
        """
        settings = self._settings
        if self.is_remote and settings.dispatcher_url is not None:
            require_extra("dispatcher", "a dispatcher's client", "httpx2")
            from tenure.client.remote import RemoteClient

            if inbox is not None:
                from tenure.client.sqs_source import SqsSource

                source = SqsSource(settings.dispatcher_url, settings.key, inbox, max_bytes=settings.max_payload_bytes)
                await source.open()
                return await self._checked(source)
            remote = RemoteClient(settings.dispatcher_url, settings.key, max_bytes=settings.max_payload_bytes)
            return await self._checked(remote)
        from tenure.postgres.connect import CALL_TIMEOUT_MS
        from tenure.postgres.store import Store

        url = await asyncio.to_thread(self.url)
        store = await Store.connect(
            url, numbers=settings.numbers, max_bytes=settings.max_payload_bytes, connections=connections,
            wake=settings.wakeups, heartbeats=service, statement_ms=None if service else CALL_TIMEOUT_MS,
        )  # fmt: skip
        return await self._checked(DirectClient(store, url if _test_url is not None else settings.direct_url or url))

    async def _checked(self, client: JobClient) -> JobClient:
        """Return the client, after the check that its database knows the application's own contracts."""
        try:
            await require_registered(client, self._contracts, self._import_target())
        except BaseException:
            await client.close()
            raise
        return client

    async def client(self) -> JobClient:
        """The shared client of this loop; the first caller opens it, and the others wait."""
        loop = asyncio.get_running_loop()
        opening = self._clients.get(loop)
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception())):
            for other in [other for other in self._clients if other.is_closed()]:
                _abandon(self._clients.pop(other))
            opening = self._clients[loop] = loop.create_task(self.open())
        return await asyncio.shield(opening)

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the background loop and wait for it, in the caller's thread."""
        with self._changing:
            if self._background is None or self._background[0] != os.getpid():  # a fork has no threads of its parent
                loop = asyncio.new_event_loop()
                threading.Thread(target=_run, args=[loop], name="tenure-sync", daemon=True).start()
                self._background = (os.getpid(), loop)
                self._end_at_exit()
            loop = self._background[1]
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    async def close(self) -> None:
        """Close the clients of this loop and of synchronous code, and release the embedded PostgreSQL."""
        opening = self._clients.pop(asyncio.get_running_loop(), None)
        if opening is not None:
            await self._close(opening)
        await asyncio.to_thread(self._end)

    def forget(self) -> None:
        """Close all clients, as far as their loops allow: the next ones connect to another database."""
        self._end_background()
        for loop, opening in list(self._clients.items()):
            del self._clients[loop]
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(self._close(opening), loop)
            elif loop.is_closed() or asyncio._get_running_loop() is not None:
                _abandon(opening)
            else:
                loop.run_until_complete(self._close(opening))
        self._forgot()

    async def _close(self, opening: asyncio.Task[JobClient]) -> None:
        """Close the client of this loop, after the calls of the application that still use it."""
        await self._before_close()
        with contextlib.suppress(TenureError):  # one that could not be opened need not be closed
            await (await opening).close()

    def _end_at_exit(self) -> None:
        """Let a program that ends without `close` end its connections before the server that they are connected to."""
        if not self._ends_at_exit:
            self._ends_at_exit = True
            atexit.register(self._end)

    def _end(self) -> None:
        """Close the client of synchronous code, then release the embedded PostgreSQL."""
        self._end_background()
        self._release_embedded()

    def _end_background(self) -> None:
        with self._changing:
            pid, loop = self._background or (0, None)
            self._background = None
        if loop is None or pid != os.getpid():
            return
        opening = self._clients.pop(loop, None)
        if opening is not None:
            with contextlib.suppress(Exception):
                asyncio.run_coroutine_threadsafe(self._close(opening), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)

    def _release_embedded(self) -> None:
        """Release the embedded PostgreSQL; the last of all its holders stops it."""
        with self._changing:
            cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.release()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped."""
    try:
        loop.run_forever()
    finally:
        loop.close()


def _abandon(opening: asyncio.Task[JobClient]) -> None:
    """Close the connections of a loop that is closed itself."""
    if opening.done() and not opening.cancelled() and opening.exception() is None:
        opening.result().abandon()
