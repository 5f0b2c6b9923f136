"""Run a dispatcher: listen, connect, serve, receive wake-ups, and stop in order.

start ─▶ listen ─▶ connect (until then every path but /healthz answers 503) ─▶ check the keys ─▶ serve
stop  ─▶ accept no new connection ─▶ end all long polls ─▶ finish the requests under way ─▶ close the store
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import uvicorn
from starlette.types import Receive, Scope, Send

from tenure.client.garbage_collection import collect_seldom
from tenure.client.retry import keep_running, wait_until_available
from tenure.errors import BadInput, TenureError
from tenure.http.application import Application
from tenure.http.authentication import Keyring, is_loopback
from tenure.http.job_calls import JobCalls
from tenure.http.protocol_limits import LimitedProtocol
from tenure.http.route_table import ROUTES
from tenure.postgres.connect import CALL_TIMEOUT_MS
from tenure.postgres.listener import Listener
from tenure.postgres.store import Store
from tenure.settings import Settings

_log = logging.getLogger("tenure.http")
#: Database connections: statements under way at once. More would only wait for each other in the database.
_CONNECTIONS = 10
#: A request waits this many seconds for a connection; then it fails with 503.
_CONNECTION_WAIT_S = 3.0
#: Seconds to finish the requests under way after the stop.
_DRAIN_S = 20
#: Log how many requests are under way when they take longer than this many seconds.
_DRAIN_LOG_S = 0.5
#: Seconds to write the batched calls of those requests.
_FLUSH_S = 5
#: A service that runs beside the server, on the same event loop, until the server stops.
Service = Callable[[], Coroutine[Any, Any, None]]


class Pages(Protocol):
    """An ASGI application in front of the API, whose streams end when the dispatcher stops."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""

    def stop_streams(self) -> None:
        """End all streams."""


class _Server(uvicorn.Server):
    """A server that leaves signals to the dispatcher."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield


class Dispatcher:
    """One dispatcher, on one address; it runs once."""

    def __init__(
        self,
        dsn: str,
        settings: Settings,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        beside: Sequence[Service] = (),
        pages: Callable[[Application], Pages] | None = None,
    ) -> None:
        self._dsn = dsn
        self._settings = settings
        self._socket = _bind(host, port)
        self._host = host
        self._services = beside
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._server: _Server | None = None
        self._application = Application(
            ROUTES, internal_run=settings.internal_run, max_body_bytes=settings.max_body_bytes,
            direct_url=settings.direct_url,
        )  # fmt: skip
        #: The pages in front of the API, if there are any.
        self._pages = None if pages is None else pages(self._application)
        self._connecting: asyncio.Task[tuple[Store, Keyring] | None] | None = None
        self._store: Store | None = None
        self._stop_requested = False

    @property
    def url(self) -> str:
        """The address that it listens on."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def stop(self) -> None:
        """Finish the requests under way and stop; a second call stops at once. Safe from any thread."""
        self._stop_requested = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._stopping.is_set() and self._server is not None:
            self._server.force_exit = True
        self._stopping.set()
        if self._connecting is not None:
            self._connecting.cancel()

    @contextlib.contextmanager
    def in_a_thread(self) -> Iterator[bool]:
        """Serve in a thread during the block; yields whether the dispatcher is open (no key exists)."""
        started: Future[bool] = Future()

        def run() -> None:
            try:
                asyncio.run(self.run(lambda _, is_open: started.set_result(is_open), signals=False))
            except BaseException as error:
                if not started.done():
                    started.set_exception(error)
            if not started.done():
                started.set_result(False)

        thread = threading.Thread(target=run, name="tenure-dispatcher", daemon=True)
        thread.start()
        try:
            yield started.result()
        finally:
            self.stop()
            thread.join(_DRAIN_S + _FLUSH_S)
            if thread.is_alive():
                raise TenureError("the dispatcher did not stop. Next: report it")

    async def run(
        self, ready: Callable[[str, bool], None] = lambda url, is_open: None, *, signals: bool = True
    ) -> None:
        """Serve until the stop. Calls `ready` with the address, and whether the dispatcher is open (no key exists)."""
        self._loop = asyncio.get_running_loop()
        if self._stop_requested:
            self._socket.close()
            return
        if signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(number, self._stop)
        self._server = server = _Server(
            uvicorn.Config(
                self._pages or self._application, interface="asgi3", http=LimitedProtocol, ws="none", lifespan="off",
                access_log=False,
                # The sender is who has connected, not whom a header names: single sign-on judges the proxy by it.
                proxy_headers=False,
                log_config=None, timeout_keep_alive=75, timeout_graceful_shutdown=_DRAIN_S, server_header=False,
                log_level="error",
            )
        )  # fmt: skip
        serving = asyncio.create_task(server.serve(sockets=[self._socket]))
        try:
            while not server.started and not serving.done():  # noqa: ASYNC110 (uvicorn has no event for it)
                await asyncio.sleep(0.005)
            if (connected := await self._connect()) is not None:
                if signals:  # this process runs nothing else
                    collect_seldom()
                await self._serve(*connected, server, serving, ready)
        finally:
            await self._disconnect()
            server.should_exit = True
            await serving
            self._socket.close()
            if signals:
                for number in (signal.SIGTERM, signal.SIGINT):
                    self._loop.remove_signal_handler(number)

    async def _connect(self) -> tuple[Store, Keyring] | None:
        """The store and its keys, as soon as the database is available; None if the stop comes first."""
        self._connecting = asyncio.create_task(wait_until_available(self._open_store, name="the dispatcher"))
        if self._stopping.is_set():
            self._connecting.cancel()
        await asyncio.wait([self._connecting])  # a stop cancels it
        return None if self._connecting.cancelled() else self._connecting.result()

    async def _open_store(self) -> tuple[Store, Keyring]:
        settings = self._settings
        store = await Store.connect(
            self._dsn, numbers=settings.numbers, max_bytes=settings.max_payload_bytes,
            connections=_CONNECTIONS, wake=settings.wakeups, patience_s=_CONNECTION_WAIT_S,
            statement_ms=CALL_TIMEOUT_MS, heartbeats=True,
        )  # fmt: skip
        try:
            await store.contracts()  # a missing schema fails here, and not at the first request
            keyring = Keyring(store, settings.admin_key)
            await keyring.is_open()
        except BaseException:
            await store.close()
            raise
        self._store = store  # here, so that a dispatcher that is cancelled now closes it too
        return store, keyring

    async def _disconnect(self) -> None:
        """Close the store; a cancelled attempt to connect closes its own."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._store is not None:
            await self._store.close()

    async def _serve(
        self,
        store: Store,
        keyring: Keyring,
        server: _Server,
        serving: asyncio.Task[None],
        ready: Callable[[str, bool], None],
    ) -> None:
        settings = self._settings
        is_open = await keyring.is_open()  # known since the connect, for the cache's 2 seconds
        if is_open and not is_loopback(self._host):
            raise BadInput(
                f"a dispatcher without keys must not listen on {self._host}: anybody could do anything. "
                "Next: tenure keys create NAME --scope admin, or set TENURE_ADMIN_KEY, or listen on 127.0.0.1"
            )
        if settings.internal_run:
            _log.warning("TENURE_INTERNAL_RUN=1: requests can run jobs; never use this in production")
        calls = JobCalls(store, settings.max_payload_bytes)
        self._application.connect(calls, keyring)
        services = [keep_running(service, _log, of="the dispatcher") for service in self._services]
        if settings.wakeups:
            services.append(Listener(settings.direct_url or self._dsn, calls.wakeups.publish).run())
        tasks = [asyncio.create_task(service) for service in services]
        try:
            if server.started:
                ready(self.url, is_open)
            await asyncio.wait(
                [serving, stop := asyncio.create_task(self._stopping.wait())], return_when="FIRST_COMPLETED"
            )
            stop.cancel()
            calls.wakeups.close()
            if self._pages is not None:
                self._pages.stop_streams()
            server.should_exit = True
            await self._drain(server, serving)
            if not server.force_exit:
                with contextlib.suppress(TimeoutError):  # a client without an answer can repeat its call
                    await asyncio.wait_for(calls.flush(), _FLUSH_S)
            _log.info("the dispatcher stopped")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _drain(self, server: _Server, serving: asyncio.Task[None]) -> None:
        """Wait for the requests under way, and log how many there are when that takes longer."""
        await asyncio.wait([serving], timeout=_DRAIN_LOG_S)
        if not serving.done() and server.server_state.tasks:
            _log.warning(
                "the dispatcher stops: %d requests are being answered; it waits up to %d s for them; a second signal "
                "ends it at once", len(server.server_state.tasks), _DRAIN_S,
            )  # fmt: skip
        await serving


def _bind(host: str, port: int) -> socket.socket:
    """A socket on this address; refuses an address that this machine cannot listen on."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        found = socket.socket(family, kind, protocol)  # asyncio sets TCP_NODELAY only with an explicit protocol
    except OSError as error:
        raise BadInput(f"{host} is no address to listen on: {error.strerror or error}") from None
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(address)
    except OSError as error:
        found.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise BadInput(
                f"cannot listen on {host}: this machine does not have that address. "
                "Next: give one of its own with --host"
            ) from None
        raise BadInput(
            f"cannot listen on {host}:{port}: {error.strerror or error}. Next: choose another port with --port"
        ) from None
    found.set_inheritable(False)
    return found
