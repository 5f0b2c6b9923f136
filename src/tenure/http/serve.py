"""Run a dispatcher: listen, hear wake-ups, keep up what time does to jobs, and stop in order.

listen ─▶ connect (until the database is there, all but /healthz is answered with 503) ─▶ who may come in? ─▶ serve
told to stop ─▶ nobody new, who waits is let go, who was heard is answered ─▶ connections closed
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
from typing import Any, NamedTuple

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from tenure.errors import BadInput, CannotConnect, TenureError
from tenure.garbage import collect_seldom
from tenure.http.callers import Keyring, is_loopback
from tenure.http.desk import Desk
from tenure.http.server import application, waiting
from tenure.http.wire import Wire
from tenure.patience import Patience, once_there
from tenure.postgres.listen import Listener
from tenure.postgres.store import Store
from tenure.settings import Settings

_log = logging.getLogger("tenure.http")
#: Statements under way at once; more would only wait for each other in the database.
_CONNECTIONS = 10
#: So long a request waits for a connection before it is told that the database is away.
_PATIENCE_S = 3.0
#: So long who was heard has to be answered after the dispatcher was told to stop.
_DRAIN_S = 20
#: And so long what they said has to be written.
_LAST_WORDS_S = 5
#: What runs beside the server, on the same event loop, until it stops.
Beside = Callable[[], Coroutine[Any, Any, None]]


class _Server(uvicorn.Server):
    """A server whose signals are ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: the dispatcher decides what they mean."""
        yield


class _Open(NamedTuple):
    """What a dispatcher has once its database is there."""

    store: Store
    keyring: Keyring
    is_open: bool


class Dispatcher:
    """One dispatcher, on one address; runs once."""

    def __init__(
        self,
        dsn: str,
        settings: Settings,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        beside: Sequence[Beside] = (),
    ) -> None:
        self._dsn = dsn
        self._settings = settings
        self._socket = _bound(host, port)
        self._host = host
        self._beside = beside
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._server: _Server | None = None
        self._application: ASGIApp | None = None
        self._was_told = False

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def stop(self) -> None:
        """Stop, from any thread: answer what was heard, and end. Told twice, at once."""
        self._was_told = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._stopping is not None and self._stopping.is_set() and self._server is not None:
            self._server.force_exit = True
        if self._stopping is not None:
            self._stopping.set()

    @contextlib.contextmanager
    def in_a_thread(self) -> Iterator[bool]:
        """Serve in a thread for as long as the block lasts; whether anybody on this machine may come in."""
        told, is_open, failed = threading.Event(), list[bool](), list[BaseException]()

        def ready(_: str, who: bool) -> None:
            is_open.append(who)
            told.set()

        def run() -> None:
            try:
                asyncio.run(self.run(ready, signals=False))
            except BaseException as error:
                failed.append(error)
            finally:
                told.set()

        thread = threading.Thread(target=run, name="tenure-dispatcher", daemon=True)
        thread.start()
        try:
            told.wait()
            if failed:
                raise failed[0]
            yield any(is_open)
        finally:
            self.stop()
            thread.join(_DRAIN_S + _LAST_WORDS_S)
            if thread.is_alive():
                raise TenureError("the dispatcher was told to stop, and did not. Next: report it")

    async def run(
        self, ready: Callable[[str, bool], None] = lambda url, is_open: None, *, signals: bool = True
    ) -> None:
        """Serve until told to stop. `ready` hears the address, and whether anybody on this machine may come in."""
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        if self._was_told:
            self._socket.close()
            return
        if signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(number, self._stop)
        self._server = server = _Server(
            uvicorn.Config(
                self._answer, interface="asgi3", http=Wire, ws="none", lifespan="off", access_log=False,
                log_config=None, timeout_keep_alive=75, timeout_graceful_shutdown=_DRAIN_S, server_header=False,
                log_level="error",
            )
        )  # fmt: skip
        serving = asyncio.create_task(server.serve(sockets=[self._socket]))
        try:
            while not server.started and not serving.done():  # noqa: ASYNC110 (uvicorn has no event for it)
                await asyncio.sleep(0.005)
            came_to = await self._connected(self._stopping)
            if came_to is not None:
                if signals:  # the process is ours
                    collect_seldom()
                try:
                    await self._serve(came_to, serving, self._stopping, ready)
                finally:
                    await came_to.store.close()
        finally:
            server.should_exit = True
            await serving
            self._socket.close()
            if signals:
                for number in (signal.SIGTERM, signal.SIGINT):
                    self._loop.remove_signal_handler(number)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request: as the application does, or that there is none yet."""
        await (self._application or waiting)(scope, receive, send)

    async def _connected(self, stopping: asyncio.Event) -> _Open | None:
        """The store and who may come in, as soon as the database is there; None where it is told to stop before."""
        waiting = once_there(self._open, who="the dispatcher", is_stopping=stopping.is_set)
        connecting, told = asyncio.create_task(waiting), asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait([connecting, told], return_when="FIRST_COMPLETED")
        finally:
            told.cancel()
            connecting.cancel()
        await asyncio.wait([connecting])
        return None if connecting.cancelled() else connecting.result()

    async def _open(self) -> _Open:
        settings = self._settings
        store = await Store.connect(
            self._dsn, numbers=settings.numbers, max_bytes=settings.max_payload_bytes,
            connections=_CONNECTIONS, wake=settings.wakeups, patience_s=_PATIENCE_S,
        )  # fmt: skip
        try:
            await store.contracts()  # a schema that is missing is said here, and not to the first client
            keyring = Keyring(store, settings.admin_key)
            return _Open(store, keyring, await keyring.is_open())
        except BaseException:
            await store.close()
            raise

    async def _serve(
        self,
        came_to: _Open,
        serving: asyncio.Task[None],
        stopping: asyncio.Event,
        ready: Callable[[str, bool], None],
    ) -> None:
        settings, server = self._settings, self._server
        assert server is not None
        store, keyring, is_open = came_to
        if is_open and not is_loopback(self._host):
            raise BadInput(
                f"a dispatcher without keys must not listen on {self._host}: anybody could do anything. "
                "Next: tenure keys create NAME --scope admin, or set TENURE_ADMIN_KEY, or listen on 127.0.0.1"
            )
        if settings.internal_run:
            _log.warning("TENURE_INTERNAL_RUN=1: jobs are run by request; never in production")
        desk = Desk(store, settings.max_payload_bytes)
        self._application = application(
            desk, keyring, internal_run=settings.internal_run, max_body_bytes=settings.max_body_bytes
        )
        beside = [self._listen(desk)] if settings.wakeups else []
        tasks = [asyncio.create_task(one) for one in (*beside, *map(_kept_up, self._beside))]
        try:
            if server.started:
                ready(self.url, is_open)
            await asyncio.wait([serving, told := asyncio.create_task(stopping.wait())], return_when="FIRST_COMPLETED")
            told.cancel()
            desk.bell.close()
            server.should_exit = True
            await serving
            if not server.force_exit:
                with contextlib.suppress(TimeoutError):  # who was not answered by now can ask again
                    await asyncio.wait_for(desk.rest(), _LAST_WORDS_S)
            _log.info("the dispatcher stopped")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _listen(self, desk: Desk) -> Coroutine[Any, Any, None]:
        return Listener(self._settings.direct_url or self._dsn, desk.bell.heard).run()


async def _kept_up(begin: Beside) -> None:
    """Run something beside the server; what ends by itself is begun again."""
    patience = Patience()
    while True:
        try:
            await begin()
        except CannotConnect as error:
            _log.warning("what runs beside the dispatcher has no database yet: %s", error)
        except Exception:
            _log.exception("what runs beside the dispatcher failed, and is begun again")
        await patience.wait()


def _bound(host: str, port: int) -> socket.socket:
    """A socket at this address; says why it cannot be had."""
    try:
        found_at = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found_at[0]
        found = socket.socket(family, kind, protocol)  # asyncio sends at once only on what is said to be TCP
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
