"""A dispatcher that a test makes up: it hears requests on a real port, and answers them as it is told, or badly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

#: What may become of a request instead of an answer.
HANG, RESET = object(), object()


@dataclass
class Cut:
    """An answer that ends before its end."""

    value: Any = None


@dataclass
class Asked:
    """A request as it came."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: Any


@dataclass
class Stub:
    """Answers each request by `answer`: a value (with 200), a status and a value, bytes, or a fault."""

    answer: Callable[[Asked], Any]
    url: str = ""
    asked: list[Asked] = field(default_factory=list)

    def of(self, path: str) -> list[Asked]:
        """The requests for this path."""
        return [one for one in self.asked if one.path == path]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, target, _ = head[0].split(" ")
                headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                path, _, query = target.partition("?")
                self.asked.append(Asked(method, path, query, headers, json.loads(body) if body else None))
                if not await self._answer(writer, self.answer(self.asked[-1])):
                    break
        writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, told: Any) -> bool:
        if told is HANG:
            await asyncio.sleep(60)
        if told in (HANG, RESET):
            writer.transport.abort()
            return False
        status, value = told if isinstance(told, tuple) else (200, told.value if isinstance(told, Cut) else told)
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        length = len(text) + 10 * isinstance(told, Cut)
        writer.write(f"HTTP/1.1 {status} -\r\ncontent-length: {length}\r\n\r\n".encode() + text)
        await writer.drain()
        return not isinstance(told, Cut)


@asynccontextmanager
async def stub(answer: Callable[[Asked], Any]) -> AsyncIterator[Stub]:
    """A dispatcher for as long as a block lasts."""
    made = Stub(answer)
    server = await asyncio.start_server(made._serve, "127.0.0.1")
    made.url = "http://127.0.0.1:{1}".format(*server.sockets[0].getsockname())
    try:
        yield made
    finally:
        server.close()


def refused(code: str, message: str = "no", hint: str | None = None) -> dict[str, Any]:
    """An error in its envelope."""
    return {"error": {"code": code, "message": message, "retryable": False, "hint": hint}, "trace_id": "t"}
