"""An HTTP proxy between a worker and a dispatcher: it records every exchange, and makes the faults that it is told to.

It forwards a claim without its wait and asks again until the wait is over, so that a scenario can hold claims back:
between `hold_claims` and `release_claims` the worker wins no job.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import httpx2

from tenure.conformance.exchange import Exchange

#: Seconds between two looks for a job during a claim that waits.
_CLAIM_POLL_S: Final = 0.05
_TIMEOUT_S: Final = 100
_HOP_HEADERS: Final = frozenset({"connection", "host", "content-length", "transfer-encoding", "expect", "keep-alive"})
_UNAVAILABLE: Final = {"code": "E-UNAVAILABLE", "message": "planned by the scenario", "retryable": True, "hint": None}
_BUSY: Final = {"code": "BUSY", "message": "planned by the scenario", "retryable": True, "hint": "try again"}

Answer = tuple[int, bytes]


class Request(NamedTuple):
    """A request as it came from the worker."""

    method: str
    target: str
    headers: dict[str, str]
    content: bytes


@dataclass(slots=True)
class Disturbance:
    """What happens to the next requests with this verb. A lost answer of a claim is one that won jobs."""

    verb: str
    kind: Literal["unavailable", "busy", "lost", "held"]
    left: int = 1
    #: Of `held`: set when the request may go on.
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    #: The requests that it met.
    met: list[Exchange] = field(default_factory=list)


class FaultProxy:
    """One proxy on its own port of the loopback address."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.exchanges: list[Exchange] = []
        self.disturbances: list[Disturbance] = []
        self._port = 0
        self._claims = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._client = httpx2.AsyncClient(timeout=_TIMEOUT_S, trust_env=False)

    @property
    def url(self) -> str:
        """The address for the worker."""
        return f"http://127.0.0.1:{self._port}"

    async def open(self) -> None:
        """Listen; again on the same port after `close`."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port, limit=1 << 20)
        self._port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and cut every connection."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def end(self) -> None:
        """Close it for good."""
        await self.close()
        for disturbance in self.disturbances:
            disturbance.go_on.set()
        await self._client.aclose()

    def disturb(self, verb: str, kind: Literal["unavailable", "busy", "lost", "held"], times: int = 1) -> Disturbance:
        """Plan a fault for the next requests with this verb."""
        planned = Disturbance(verb, kind, times)
        self.disturbances.append(planned)
        return planned

    async def hold_claims(self) -> None:
        """Let no claim through from now on; waits for one that is under way."""
        await self._claims.acquire()

    def release_claims(self) -> None:
        """Let claims through again."""
        self._claims.release()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
                while (request := await _read_request(reader, writer)) is not None:
                    if (answer := await self._respond(request, reader)) is None:
                        break
                    status, content = answer
                    head = (
                        f"HTTP/1.1 {status} .\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n"
                    )
                    writer.write(head.encode() + b"\r\n" + content)
                    await writer.drain()
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _respond(self, request: Request, reader: asyncio.StreamReader) -> Answer | None:
        """The answer for the worker; None: the connection is cut without one."""
        path = request.target.partition("?")[0]
        exchange = Exchange(request.method, path, request.headers, _json(request.content), time.monotonic())
        self.exchanges.append(exchange)
        planned = next((one for one in self.disturbances if one.left > 0 and one.verb in exchange.verbs), None)
        if planned is not None and planned.kind != "lost":
            planned.left -= 1
            planned.met.append(exchange)
            if planned.kind == "held":
                await planned.go_on.wait()
            else:
                status, error = (503, _UNAVAILABLE) if planned.kind == "unavailable" else (409, _BUSY)
                return self._answered(exchange, status, json.dumps({"error": error, "trace_id": "0"}).encode())
        is_claim = path == "/api/v1/claims"
        answer = await (self._claim(request, reader) if is_claim else self._forward(request))
        if answer is None:
            return None
        exchange.status, exchange.answer = answer[0], _json(answer[1])
        if planned is not None and planned.kind == "lost":
            claim = exchange.claim()
            if claim is None or claim.won:
                planned.left -= 1
                planned.met.append(exchange)
                return None
        return self._answered(exchange, *answer)

    def _answered(self, exchange: Exchange, status: int, content: bytes) -> Answer:
        exchange.status, exchange.answer = status, _json(content)
        exchange.answered_at = time.monotonic()
        return status, content

    async def _claim(self, request: Request, reader: asyncio.StreamReader) -> Answer | None:
        """Claim without waiting, again and again until there is a job, the wait is over, or the worker has gone."""
        body = _json(request.content)
        wait = body.get("wait_seconds") if isinstance(body, dict) else None
        if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 < wait <= 60:
            async with self._claims:
                return None if reader.at_eof() else await self._forward(request)
        until = time.monotonic() + wait
        at_once = request._replace(content=json.dumps({**body, "wait_seconds": 0}).encode())
        while True:
            async with self._claims:
                if reader.at_eof():
                    return None
                answer = await self._forward(at_once)
            is_empty = answer is not None and answer[0] == 200 and _json(answer[1]) == {"claims": []}
            if not is_empty or time.monotonic() > until:
                return answer
            await asyncio.sleep(_CLAIM_POLL_S)

    async def _forward(self, request: Request) -> Answer | None:
        """The dispatcher's answer; None while it cannot be reached."""
        headers = {name: value for name, value in request.headers.items() if name not in _HOP_HEADERS}
        try:
            answer = await self._client.request(
                request.method, self.upstream + request.target, headers=headers, content=request.content
            )
        except httpx2.HTTPError:
            return None
        return answer.status_code, answer.content


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    """The next request of a connection; None at its end."""
    if not (first := await reader.readline()).strip():
        return None
    method, target, _ = first.decode("latin-1").split(" ", 2)
    headers: dict[str, str] = {}
    while line := (await reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    if "100-continue" in headers.get("expect", "").lower():
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if "chunked" in headers.get("transfer-encoding", "").lower():
        content = b""
        while size := int((await reader.readline()).partition(b";")[0], 16):
            content += await reader.readexactly(size)
            await reader.readline()
        while (await reader.readline()).strip():
            pass
    else:
        content = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, target, headers, content)


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None
