"""Size and time limits that httptools and uvicorn do not enforce.

httptools keeps headers and trailers of any size, waits for the rest of a request without a limit, and stops parsing at
a request that offers another protocol. Here the head of a request has a largest size, a request must arrive within a
time, and a client must read its response. Bytes that are no HTTP get the same error envelope as everything else.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from uuid import uuid4

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from tenure.errors import BadInput, TenureError
from tenure.http.error_response import error_body
from tenure.jobs.formats import dump_json

#: The largest head of a request (its path and headers), in bytes.
HEAD_BYTES = 64 * 1024
#: A whole request must arrive within this many seconds. The guard waits 30 s for a body, and answers with 408.
REQUEST_S = 60.0
#: A client must read some bytes of its response within this many seconds.
UNREAD_S = 60.0
#: The same limit while the dispatcher stops.
_STOP_UNREAD_S = 5.0
#: The framing of a body may have this many bytes for each byte of the body (a chunk of one byte has five), plus these.
_FRAMING_PER_BYTE, _FRAMING_BYTES = 8, 8 * HEAD_BYTES
#: The headers with which a client offers another protocol.
_UPGRADE_HEADERS = frozenset({b"upgrade", b"http2-settings"})


class HeadTooLarge(TenureError):
    """The path and headers of a request are larger than the limit."""

    code = "E-HEADERS-TOO-LARGE"


class LimitedProtocol(HttpToolsProtocol):
    """One connection."""

    #: Bytes of the current request: its head, all that was received, its body.
    _head = _raw = _body = 0
    _in_head = False
    _in_request = True  # the time limit also holds for a connection without any request
    _is_upgrade = _began_here = False
    _request_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None
    _close_timer: asyncio.TimerHandle | None = None
    _unread_s: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit of the first request."""
        super().connection_made(transport)
        self._start_request_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        self._end_request()
        if self._close_timer is not None:
            self._close_timer.cancel()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; refuses a head as soon as it is too large."""
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        self._began_here = False
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.send_400_response("")
        if self.transport.is_closing():
            return
        if self._in_request and not self._began_here:  # else these bytes may hold the end of another request
            self._raw += len(data)
            self._head += len(data) if self._in_head else 0
            if self._head > HEAD_BYTES or self._raw > _FRAMING_BYTES + (1 + _FRAMING_PER_BYTE) * self._body:
                self._head = max(self._head, HEAD_BYTES + 1)
                self.send_400_response("")
                return
        if self._in_request or not self._is_answering():
            self._start_request_timer()  # also after an empty line

    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                # An offer of another protocol is answered in HTTP/1.1, as the standard allows.
                if self.parser.get_method() == b"CONNECT":
                    raise httptools.HttpParserError("this is not a proxy") from None
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as the first parser has
            else:
                return

    def _head_without_upgrade(self) -> bytes:
        """The head that was parsed last, without the offer of another protocol."""
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                value = b",".join(part for part in value.split(b",") if part.strip().lower() not in _UPGRADE_HEADERS)
            if name not in _UPGRADE_HEADERS:
                lines.append(name + b": " + value)
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._head = self._raw = self._body = 0
        self._in_head = self._in_request = self._began_here = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; trailers behind a body are dropped."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete; refuses one that is too large."""
        self._is_upgrade = self.parser.should_upgrade()
        if self._is_upgrade:
            return  # it is parsed again, without the offer
        self._in_head = False
        self._head = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if self._head > HEAD_BYTES:
            raise HeadTooLarge  # the parser stops, and send_400_response is called
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count a part of the body."""
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete: stop its timer."""
        if not self._is_upgrade:
            super().on_message_complete()
            self._end_request()

    def pause_writing(self) -> None:
        """The client does not read its response: limit the time."""
        super().pause_writing()
        self._start_read_timer(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """The client has read enough: stop the timer."""
        super().resume_writing()
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def on_response_complete(self) -> None:
        """A response is written; after the last one the connection closes."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._close()
        elif self.pipeline:  # a client that sends faster than it reads must not fill the memory
            self.flow.pause_reading()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection without requests."""
        self._close()

    def shutdown(self) -> None:
        """The server stops: shorten the time limits."""
        super().shutdown()
        self._unread_s = _STOP_UNREAD_S
        if self.transport.is_closing():
            self._close(_STOP_UNREAD_S)
        elif self._read_timer is not None:  # a response is unread: from now on the shorter limit
            self._read_timer.cancel()
            self._start_read_timer(self.transport.get_write_buffer_size())

    def _close(self, within_s: float | None = None) -> None:
        """Close, and abort when the client does not read the rest in time."""
        self.transport.close()
        self._end_request()
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._close_timer = self.loop.call_later(UNREAD_S if within_s is None else within_s, self.transport.abort)

    def _start_read_timer(self, size: int) -> None:
        def check() -> None:
            left = self.transport.get_write_buffer_size()
            if left < size:
                self._start_read_timer(left)
            else:
                self.transport.abort()

        self._read_timer = self.loop.call_later(UNREAD_S if self._unread_s is None else self._unread_s, check)

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no request, and close."""
        if self._is_answering() and (self._in_head or not self._in_request):
            # Answer only the request before: its client would take this error for its response.
            self.cycle.keep_alive = False
            self.flow.pause_reading()
            self._end_request()
            return
        if self.pipeline or (self._is_answering() and self.cycle.response_started):
            self._close()
            return
        error: TenureError = BadInput("this is not an HTTP/1.1 request")
        status = HTTPStatus.BAD_REQUEST
        if self._head > HEAD_BYTES:
            error = HeadTooLarge(f"there is more than {HEAD_BYTES} bytes around the body. Next: send less")
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        trace_id = uuid4().hex
        body = dump_json({"error": error_body(error), "trace_id": trace_id})
        lines = (
            f"HTTP/1.1 {status.value} {status.phrase}", "content-type: application/json",
            f"content-length: {len(body)}", f"x-request-id: {uuid4().hex}", f"x-trace-id: {trace_id}",
            "connection: close", "", body,
        )  # fmt: skip
        self.transport.write("\r\n".join(lines).encode())
        self._close()

    def _start_request_timer(self) -> None:
        if self._request_timer is None:
            self._request_timer = self.loop.call_later(REQUEST_S, self._close)

    def _end_request(self) -> None:
        self._in_request = False
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None
