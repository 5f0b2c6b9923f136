"""The wire: HTTP as strangers send it, with the bounds that the parser has not.

The parser keeps headers and trailers without end, waits for the rest of a request for ever, and takes the head of a
request that offers another protocol for the whole of it. Here a request has a largest head and must be here within a
time, whoever sends it, and an answer must be taken; what is no HTTP is refused in the same envelope as everything else.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from uuid import uuid4

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from tenure.errors import BadInput, TenureError
from tenure.http.refusals import told
from tenure.rendered import as_json

#: The largest address and headers that a request may have.
HEAD_BYTES = 64 * 1024
#: A request must be here, with its body, after so many seconds; longer than the guard waits for a body, which says so.
REQUEST_S = 60.0
#: Of an answer some bytes must be taken in so many seconds.
UNREAD_S = 60.0
#: And so many when the dispatcher stops.
_LAST_BYTES_S = 5.0
#: What stands around the body may have so many bytes for each of its own (chunks of one byte have five), and so many.
_AROUND, _SLACK = 8, 8 * HEAD_BYTES
#: The headers with which a client offers to speak something else.
_OFFERS = frozenset({b"upgrade", b"http2-settings"})


class HeadTooLarge(TenureError):
    """The address and headers of a request are larger than the dispatcher takes."""

    code = "E-HEADERS-TOO-LARGE"


class Wire(HttpToolsProtocol):
    """One connection."""

    _head = _raw = _body = 0
    _in_head = False
    _in_request = True  # a connection on which nothing ever comes is late, too
    _is_offer = _began_here = False
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _closing: asyncio.TimerHandle | None = None
    _unread_s: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, and wait for a first request no longer than for its end."""
        super().connection_made(transport)
        self._await_end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._end()
        if self._closing is not None:
            self._closing.cancel()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Hear a part; refuses a head without end as soon as it is too large."""
        self._unset_keepalive_if_required()
        self._began_here = False
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.send_400_response("")
        if self.transport.is_closing():
            return
        if self._in_request and not self._began_here:  # in that part may be the end of another one
            self._raw += len(data)
            self._head += len(data) if self._in_head else 0
            if self._head > HEAD_BYTES or self._raw > _SLACK + (1 + _AROUND) * self._body:
                self._head = max(self._head, HEAD_BYTES + 1)
                self.send_400_response("")
                return
        if self._in_request or not self._is_answering():
            self._await_end()  # also when it was a mere empty line

    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                # Whoever offers to speak something else is answered in what they speak now, as the standard allows.
                if self.parser.get_method() == b"CONNECT":
                    raise httptools.HttpParserError("this is no proxy") from None
                data = self._without_offer() + data[offer.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as the one before it had
            else:
                return

    def _without_offer(self) -> bytes:
        """The head that was heard last, without what made it an offer."""
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                value = b",".join(one for one in value.split(b",") if one.strip().lower() not in _OFFERS)
            if name not in _OFFERS:
                lines.append(name + b": " + value)
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._head = self._raw = self._body = 0
        self._in_head = self._in_request = self._began_here = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; what comes behind a body is none."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Its head is here; refuses one that is too large."""
        self._is_offer = self.parser.should_upgrade()
        if self._is_offer:
            return  # it is heard again, without the offer
        self._in_head = False
        self._head = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if self._head > HEAD_BYTES:
            raise HeadTooLarge  # the parser stops, and send_400_response is called
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of its body."""
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """It is here as a whole."""
        if not self._is_offer:
            super().on_message_complete()
            self._end()

    def pause_writing(self) -> None:
        """An answer waits to be taken: not for ever."""
        super().pause_writing()
        self._await_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """It was taken."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def on_response_complete(self) -> None:
        """An answer is written; where it was the last one, the connection closes."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._close()
        elif self.pipeline:  # first what was heard: whoever sends quicker than they read must not fill the memory
            self.flow.pause_reading()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing came for long enough."""
        self._close()

    def shutdown(self) -> None:
        """The server stops."""
        super().shutdown()
        self._unread_s = _LAST_BYTES_S
        if self.transport.is_closing():
            self._close(_LAST_BYTES_S)
        elif self._unread is not None:  # an answer waits to be taken: from now on not as long
            self._unread.cancel()
            self._await_reader(self.transport.get_write_buffer_size())

    def _close(self, within_s: float | None = None) -> None:
        """Close, and do not wait for ever for who does not take what was written."""
        self.transport.close()
        self._end()
        if self._closing is not None:
            self._closing.cancel()
        self._closing = self.loop.call_later(UNREAD_S if within_s is None else within_s, self.transport.abort)

    def _await_reader(self, size: int) -> None:
        def look() -> None:
            left = self.transport.get_write_buffer_size()
            if left < size:
                self._await_reader(left)
            else:
                self.transport.abort()

        self._unread = self.loop.call_later(UNREAD_S if self._unread_s is None else self._unread_s, look)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, and hear no more."""
        if self._is_answering() and (self._in_head or not self._in_request):
            # What was heard before it is answered, and nothing else: whoever asked that would take this for the answer.
            self.cycle.keep_alive = False
            self.flow.pause_reading()
            self._end()
            return
        if self.pipeline or (self._is_answering() and self.cycle.response_started):
            self._close()
            return
        error: TenureError = BadInput("this is not a request in HTTP/1.1")
        status = HTTPStatus.BAD_REQUEST
        if self._head > HEAD_BYTES:
            error = HeadTooLarge(f"there is more than {HEAD_BYTES} bytes around the body. Next: send less")
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        trace_id = uuid4().hex
        body = as_json({"error": told(error), "trace_id": trace_id})
        lines = (
            f"HTTP/1.1 {status.value} {status.phrase}", "content-type: application/json",
            f"content-length: {len(body)}", f"x-request-id: {uuid4().hex}", f"x-trace-id: {trace_id}",
            "connection: close", "", body,
        )  # fmt: skip
        self.transport.write("\r\n".join(lines).encode())
        self._close()

    def _await_end(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_S, self._close)

    def _end(self) -> None:
        self._in_request = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
