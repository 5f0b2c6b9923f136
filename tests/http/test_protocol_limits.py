"""What httptools would accept: offers of other protocols, trailers without end, responses that nobody reads."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
from contextlib import suppress
from typing import Any

import pytest

from tenure.http import application, dispatcher, protocol_limits
from tests.http.conftest import Caller, serving
from tests.http.test_protocol import answer, connected, is_closed, request

_JSON = "Content-Type: application/json"
_OFFER = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")
_BODY = json.dumps({"type": "t"}).encode()


def test_a_request_that_offers_another_protocol_is_answered_in_this_one_with_its_body(
    url: str, http: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, read = threading.Event(), application._receive

    async def seen(*given: Any) -> bytes:
        reads.set()
        return await read(*given)

    monkeypatch.setattr(application, "_receive", seen)
    with connected(url) as client:
        client.sendall(request("/api/v1/jobs", _JSON, f"Content-Length: {len(_BODY)}", *_OFFER, method="POST"))
        assert reads.wait(60)  # the body comes in a segment of its own, and is no request
        client.sendall(_BODY + request("/healthz"))
        status, _, told = answer(client)
        assert (status, told["made"]) == (201, True)
        assert answer(client)[0] == 200
    assert len(http.get("/api/v1/jobs")["jobs"]) == 1


def test_a_body_that_looks_like_a_request_is_a_body(url: str) -> None:
    inside = request("/healthz")
    with connected(url) as client:
        head = request("/api/v1/jobs", _JSON, f"Content-Length: {len(inside)}", *_OFFER, method="POST")
        client.sendall(head + inside)
        assert answer(client)[0] == 422
        client.sendall(request("/api/v1/nowhere"))
        assert answer(client)[0] == 404  # and not what the body asked for


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_curl_that_would_like_http_2_makes_its_job(url: str) -> None:
    command = ["curl", "-s", "--http2", f"{url}/api/v1/jobs", "-H", _JSON, "-d", _BODY.decode()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout)["made"] is True, done


def test_who_takes_it_for_a_proxy_is_refused(url: str) -> None:
    with connected(url) as client:
        client.sendall(b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n")
        assert answer(client)[0] == 400


def chunked(url: str, body: bytes, trailers: bytes) -> bytes:
    """A request whose body comes in chunks of one byte, with these lines behind it."""
    head = request("/api/v1/jobs", _JSON, "Transfer-Encoding: chunked", method="POST")
    return head + b"".join(b"1\r\n%c\r\n" % one for one in body) + b"0\r\n" + trailers


def test_what_stands_behind_a_body_is_no_header(url: str) -> None:
    with connected(url) as client:
        client.sendall(chunked(url, _BODY, b"X-Request-Id: from-behind\r\n\r\n"))
        status, headers, _ = answer(client)
    assert status == 201
    assert headers["x-request-id"] != "from-behind"


@pytest.mark.parametrize("line", [b"X: y\r\n", b"x"])
def test_trailers_without_end_are_cut_off(url: str, line: bytes) -> None:
    sent = 0
    with connected(url) as client:
        client.sendall(chunked(url, _BODY, b"" if line.endswith(b"\n") else b"X: "))
        with suppress(BrokenPipeError, ConnectionResetError):
            while sent < 50_000_000:
                client.sendall(line * (65_536 // len(line)))
                sent += 65_536
    assert sent < 20_000_000  # what the sockets hold


def test_an_answer_that_nobody_takes_is_given_up(url: str, http: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol_limits, "UNREAD_S", 0.2)
    given_up, lost = threading.Event(), protocol_limits.LimitedProtocol.connection_lost

    def seen(connection: protocol_limits.LimitedProtocol, exc: Exception | None) -> None:
        lost(connection, exc)
        if connection.client == client.getsockname():
            given_up.set()

    monkeypatch.setattr(protocol_limits.LimitedProtocol, "connection_lost", seen)
    for _ in range(12):
        http.enqueued(payload={"text": "x" * 1_000_000})
    body = json.dumps({"worker_id": "w", "limit": 12}).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.settimeout(60)
        host, _, port = url.removeprefix("http://").partition(":")
        client.connect((host, int(port)))
        client.sendall(request("/api/v1/claims", _JSON, f"Content-Length: {len(body)}", method="POST", body=body))
        assert given_up.wait(60)  # it takes nothing
        heard = 0
        with suppress(ConnectionResetError):
            while part := client.recv(1_000_000):
                heard += len(part)
    assert heard < 12_000_000


def test_an_empty_line_keeps_no_connection(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(url) as client:
        client.sendall(request("/healthz"))
        assert answer(client)[0] == 200
        monkeypatch.setattr(protocol_limits, "REQUEST_S", 0.3)  # from here: a request in time may be slow
        client.sendall(b"\r\n")
        assert is_closed(client, 60)


def test_what_is_no_request_takes_no_earlier_answer_away(url: str, http: Caller) -> None:
    with connected(url) as client:
        head = request("/api/v1/jobs", _JSON, f"Content-Length: {len(_BODY)}", method="POST")
        client.sendall(head + _BODY + b"\x00 this is no request\r\n\r\n")
        status, _, told = answer(client)
        assert (status, told["made"]) == (201, True)
        assert is_closed(client, 60)


def test_the_end_of_a_body_is_no_part_of_the_next_head(url: str) -> None:
    body = json.dumps({"type": "t", "payload": "x" * 900_000}).encode()
    first = request("/api/v1/jobs", _JSON, f"Content-Length: {len(body)}", method="POST", body=body)
    second = request("/healthz")
    with connected(url) as client:
        client.sendall(first + second[:-10])
        assert answer(client)[0] == 201
        client.sendall(second[-10:])
        assert answer(client)[0] == 200


def test_who_takes_no_answer_does_not_hold_up_the_end(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol_limits, "_STOP_UNREAD_S", 0.2)
    for module, longer in ((protocol_limits, "UNREAD_S"), (dispatcher, "_DRAIN_S")):  # what else would end it
        monkeypatch.setattr(module, longer, 3_600)
    is_full, is_over = threading.Event(), threading.Event()
    pause, lost = protocol_limits.LimitedProtocol.pause_writing, protocol_limits.LimitedProtocol.connection_lost

    def paused(connection: protocol_limits.LimitedProtocol) -> None:
        pause(connection)
        is_full.set()

    def over(connection: protocol_limits.LimitedProtocol, exc: Exception | None) -> None:
        lost(connection, exc)
        is_over.set()

    monkeypatch.setattr(protocol_limits.LimitedProtocol, "pause_writing", paused)
    monkeypatch.setattr(protocol_limits.LimitedProtocol, "connection_lost", over)
    with socket.socket() as client:
        with serving(dsn) as url:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            host, _, port = url.removeprefix("http://").partition(":")
            client.connect((host, int(port)))
            client.settimeout(1)
            sent, is_stuck = 0, False
            while sent < 50_000_000 and not is_stuck:
                try:
                    sent += client.send(request("/healthz") * 100)
                except TimeoutError:  # it hears no more, or is merely slow
                    is_stuck = is_full.is_set()
        assert is_over.is_set()
    assert sent < 20_000_000  # what the sockets hold, and what was heard until an answer was not taken
