"""A connection of the engine: psycopg's, with one lasting reader on its socket.

psycopg adds a reader to the event loop for each wait and removes it again, and makes a cursor for each statement. After
an idle moment these cost a claim more than the rest of the client does. Here the reader stays:

    a statement is under way   the reader drives psycopg's generator of that statement
    nothing is under way       the reader reads at once what the server sends by itself: notifications, the end

What is rare (opening, cancelling, a wait with a time limit) is left to psycopg, without the reader.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.generators import execute
from psycopg.pq import ConnStatus, ExecStatus, Format, TransactionStatus
from psycopg.waiting import Ready, Wait

#: At most this many statements of a session are prepared; psycopg has the same limit.
_MOST_PREPARED = 100
_DONE = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)
#: How long a cancelled statement may take to end, in seconds; a connection on which it does not is closed.
_CANCEL_S = 5.0


class EngineConnection(psycopg.AsyncConnection[Any]):
    """One session. Whoever runs more than one statement on a shared one takes `in_use` for that time."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.in_use = asyncio.Lock()
        #: Set when the connection is found to be lost, or is closed.
        self.ended = asyncio.Event()
        #: The socket that is read, in which loop; None before `start_reading` and after the end.
        self._socket: int | None = None
        self._loop = asyncio.get_running_loop()
        #: The statement under way: psycopg's generator, and the future of its value.
        self._statement: PQGen[Any] | None = None
        self._value: asyncio.Future[Any] | None = None
        #: The text of a statement → its name in this session, or how often it was used before it was prepared.
        self._names: dict[str, bytes | int] = {}
        self._next_number = itertools.count(1)
        self._transformer = Transformer(self)
        self._is_writing = False

    def start_reading(self) -> None:
        """Begin to read what the server sends; the connection must be open."""
        self._socket = self.pgconn.socket
        self._loop.add_reader(self._socket, self._on_readable)

    async def fetch(self, text: str, values: Sequence[str | bool | None], *, prepare: bool) -> list[tuple[Any, ...]]:
        """Execute one statement with $1, $2 … as text, and return its rows.

        It is prepared after some uses, unless `prepare` is False or this session is behind a pooler. Raises
        IdleSessionTimeout where the session has ended and nothing was sent.
        """
        parameters = [None if value is None else _encoded(value) for value in values]
        async with self.lock:
            if self.ended.is_set():
                raise psycopg.errors.IdleSessionTimeout("the session ended before the statement was sent")
            try:
                name = await self._prepared_name(text) if prepare else None
                if name is None:
                    self.pgconn.send_query_params(text.encode(), parameters, result_format=Format.BINARY)
                else:
                    self.pgconn.send_query_prepared(name, parameters, result_format=Format.BINARY)
                result = await self._result()
            finally:
                self._stop_if_closed()
        if not result.nfields:
            return []
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    async def _prepared_name(self, text: str) -> bytes | None:
        """The name under which a statement is prepared; None where it is used too seldom for that."""
        found = self._names.get(text, 0)
        if isinstance(found, bytes):
            return found
        if self.prepare_threshold is None or (found == 0 and len(self._names) >= _MOST_PREPARED):
            return None
        self._names[text] = found + 1
        if found < self.prepare_threshold:
            return None
        name = b"tenure_%d" % next(self._next_number)
        self.pgconn.send_prepare(name, text.encode())
        await self._result()
        self._names[text] = name
        return name

    async def _result(self) -> Any:
        """The result of what was just sent; raises the error of the server."""
        results = await self.wait(execute(self.pgconn))
        for result in results:
            if result.status not in _DONE:
                raise psycopg.errors.error_from_result(result, encoding="utf-8")
        return results[-1]

    async def wait(self, gen: PQGen[Any], interval: float = 0.1, timeout: float | None = None) -> Any:
        """Run a generator of psycopg to its end: all that uses this connection waits here.

        A cancelled statement is cancelled in the server too, and has ended before CancelledError is raised.
        """
        if self._socket is None:
            return await super().wait(gen, interval, timeout)
        if timeout is not None:
            return await self._wait_without_reader(gen, timeout)
        try:
            return await self._drive(gen)
        except asyncio.CancelledError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                await self._cancel(gen)
            raise
        finally:
            self._stop_if_closed()

    async def _drive(self, gen: PQGen[Any]) -> Any:
        try:
            wanted = next(gen)
        except StopIteration as stop:
            return stop.value
        value = self._value = self._loop.create_future()
        self._statement = gen
        if wanted & Wait.W:  # it is larger than the socket's buffer
            self._is_writing = True
            self._loop.add_writer(self.pgconn.socket, self._on_writable)
        try:
            return await value
        finally:
            self._statement = self._value = None
            self._stop_writing()
            if value.done() and not value.cancelled():
                value.exception()  # one that nobody awaits any more is not logged

    def _on_readable(self) -> None:
        if self._statement is not None:
            self._advance(Ready.R)
        elif self._value is None:
            self._read_unasked()

    def _on_writable(self) -> None:
        if self._statement is not None:
            self._advance(Ready.W)

    def _advance(self, ready: Ready) -> None:
        """Let the statement under way go on as far as it can."""
        statement, value = self._statement, self._value
        if statement is None or value is None:
            return
        try:
            wanted = statement.send(ready)
        except StopIteration as stop:
            self._statement = None
            if not value.done():
                value.set_result(stop.value)
        except BaseException as error:
            self._statement = None
            if not value.done():
                value.set_exception(error)
            self._stop_if_closed()
        else:
            if not wanted & Wait.W:
                self._stop_writing()

    def _stop_writing(self) -> None:
        if self._is_writing:
            self._is_writing = False
            if self._socket is not None:
                self._loop.remove_writer(self._socket)

    def _read_unasked(self) -> None:
        """Read what the server sent by itself, and pass notifications on."""
        try:
            self.pgconn.consume_input()
        except psycopg.Error:
            self._stop_reading()
        while (notification := self.pgconn.notifies()) is not None:
            if self.pgconn.notify_handler is not None:
                self.pgconn.notify_handler(notification)

    def _stop_if_closed(self) -> None:
        """Stop to read a socket that the driver has closed, before its number is used for another one."""
        if self._socket is not None and self.pgconn.status == ConnStatus.BAD:
            self._stop_reading()

    def _stop_reading(self) -> None:
        socket, self._socket = self._socket, None
        self.ended.set()
        if socket is not None and not self._loop.is_closed():
            self._loop.remove_reader(socket)
            if self._is_writing:
                self._is_writing = False
                self._loop.remove_writer(socket)

    async def _wait_without_reader(self, gen: PQGen[Any], timeout: float) -> Any:
        """Let psycopg wait: its reader would take the place of the lasting one."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
        try:
            return await super().wait(gen, timeout=timeout)
        finally:
            if self._socket is not None and self.pgconn.status == ConnStatus.OK:
                self._loop.add_reader(self._socket, self._on_readable)
            else:
                self._stop_reading()

    async def _cancel(self, gen: PQGen[Any]) -> None:
        """Cancel the statement under way in the server, and wait for its end; else close the connection."""
        if self._socket is not None:  # what arrives meanwhile belongs to the generator
            self._loop.remove_reader(self._socket)
        try:
            await self.cancel_safe(timeout=_CANCEL_S)
            await self._wait_without_reader(gen, _CANCEL_S)
        except psycopg.Error:
            pass
        finally:
            if self.pgconn.transaction_status in (TransactionStatus.ACTIVE, TransactionStatus.UNKNOWN):
                await self.close()

    async def close(self) -> None:
        """Close the connection; its socket is not read any more."""
        self._stop_reading()
        await super().close()


def _encoded(value: str | bool) -> bytes:
    if isinstance(value, bool):
        return b"true" if value else b"false"
    encoded = value.encode()
    if b"\x00" in encoded:  # the driver would end the text there
        raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    return encoded
