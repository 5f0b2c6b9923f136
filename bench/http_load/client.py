"""A small HTTP/1.1 client: one kept-alive connection, one request at a time.

A client library would use more processor time than the dispatcher. This client supports only what the benchmark needs:
responses with a Content-Length.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any
from urllib.parse import urlsplit

#: An answer that takes longer than this is none.
_PATIENCE_S = 60.0


class Unexpected(Exception):
    """An answer that no benchmark wants."""


class Client(asyncio.Protocol):
    """One connection to a dispatcher; notes how long each kind of call took."""

    def __init__(self, authority: str, key: str) -> None:
        self._rest = (
            f" HTTP/1.1\r\nHost: {authority}\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        )
        self._buffer = bytearray()
        self._body_at = self._ends_at = 0
        self._answered: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: Any = None
        #: Seconds of each call so far, by the name that it was given.
        self.spent: dict[str, list[float]] = {}

    @classmethod
    async def connect(cls, url: str, key: str) -> Client:
        """A client of the dispatcher at this address."""
        parts = urlsplit(url)
        host, port = parts.hostname or "127.0.0.1", parts.port or 80
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: cls(parts.netloc, key), host, port)
        return client

    async def post(self, name: str, path: str, body: bytes) -> Any:
        """Send JSON and give the answer's; refuses an answer that is none of success."""
        head = f"POST {path}{self._rest}Content-Length: {len(body)}\r\n\r\n".encode()
        self._answered = asyncio.get_running_loop().create_future()
        begun = time.perf_counter()
        self._transport.write(head + body)
        async with asyncio.timeout(_PATIENCE_S):
            status, answer = await self._answered
        self.spent.setdefault(name, []).append(time.perf_counter() - begun)
        if not 200 <= status < 300:
            raise Unexpected(f"{path} answers {status}: {answer[:500].decode(errors='replace')}")
        return json.loads(answer)

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Gather an answer until it is whole."""
        self._buffer += data
        if not self._ends_at:
            if (end := self._buffer.find(b"\r\n\r\n")) < 0:
                return
            head = bytes(self._buffer[:end]).lower()
            length = head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
            self._body_at, self._ends_at = end + 4, end + 4 + int(length)
        if len(self._buffer) >= self._ends_at and self._answered is not None and not self._answered.done():
            answer = int(self._buffer[9:12]), bytes(self._buffer[self._body_at : self._ends_at])
            self._buffer.clear()
            self._ends_at = 0
            self._answered.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        """Whoever waits for an answer gets none."""
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(Unexpected(f"the dispatcher closed the connection: {error}"))
