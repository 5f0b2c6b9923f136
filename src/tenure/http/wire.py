"""The wire: HTTP as strangers send it, with the bounds that the parser has not.

The parser keeps headers without end and waits for the rest of a request for ever. Here a request has a largest head and
must be here within a time, whoever sends it; what is no HTTP is refused in the same envelope as everything else.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from uuid import uuid4

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tenure.errors import BadInput, TenureError
from tenure.http.refusals import told
from tenure.rendered import as_json

#: The largest address and headers that a request may have.
HEAD_BYTES = 64 * 1024
#: A request must be here, with its body, after so many seconds; longer than the guard waits for a body, which says so.
REQUEST_S = 60.0


class HeadTooLarge(TenureError):
    """The address and headers of a request are larger than the dispatcher takes."""

    code = "E-HEADERS-TOO-LARGE"


class Wire(HttpToolsProtocol):
    """One connection."""

    _head = 0
    _in_head = False
    _in_request = True  # a connection on which nothing ever comes is late, too
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, and wait for a first request no longer than for its end."""
        super().connection_made(transport)
        self._await_end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Hear a part; refuses a head without end as soon as it is too large."""
        super().data_received(data)
        if self._in_request and not self.transport.is_closing():
            self._head += len(data) if self._in_head else 0
            if self._head > HEAD_BYTES:
                self.send_400_response("")
            else:
                self._await_end()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._head, self._in_head, self._in_request = 0, True, True

    def on_headers_complete(self) -> None:
        """Its head is here; refuses one that is too large."""
        self._in_head = False
        self._head = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if self._head > HEAD_BYTES:
            raise HeadTooLarge  # the parser stops, and send_400_response is called
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """It is here as a whole."""
        super().on_message_complete()
        self._end()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, and hear no more."""
        error: TenureError = BadInput("this is not a request in HTTP/1.1")
        status = HTTPStatus.BAD_REQUEST
        if self._head > HEAD_BYTES:
            error = HeadTooLarge(f"the address and headers have more than {HEAD_BYTES} bytes. Next: send less")
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        trace_id = uuid4().hex
        body = as_json({"error": told(error), "trace_id": trace_id})
        lines = (
            f"HTTP/1.1 {status.value} {status.phrase}", "content-type: application/json",
            f"content-length: {len(body)}", f"x-request-id: {uuid4().hex}", f"x-trace-id: {trace_id}",
            "connection: close", "", body,
        )  # fmt: skip
        self.transport.write("\r\n".join(lines).encode())
        self.transport.close()

    def _await_end(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_S, self.transport.close)

    def _end(self) -> None:
        self._in_request = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
