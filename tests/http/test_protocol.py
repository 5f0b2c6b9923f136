"""Below HTTP: heads without end, requests that stop, clients that disconnect, forged names."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

import httpx2
import pytest

from tenure.errors import Unavailable
from tenure.http import application, protocol_limits
from tenure.http.long_poll import ClaimGroup
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.http.conftest import Caller, serving
from tests.worker.working import until

ADMIN = "an admin's key of its own"


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    """A connection, to say anything on."""
    address = httpx2.URL(url)
    with socket.create_connection((address.host, address.port or 80), timeout=60) as client:
        yield client


def answer(client: socket.socket) -> tuple[int, dict[str, str], Any]:
    """The next answer on a connection: status, headers, and the body as JSON; leaves what comes behind it unread."""
    head, body = b"", b""
    while not head.endswith(b"\r\n\r\n"):
        part = client.recv(1)
        assert part, f"closed after {head!r}"
        head += part
    first, *lines = head.decode().rstrip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    while left := int(headers["content-length"]) - len(body):
        part = client.recv(left)
        assert part, f"closed after {head + body!r}"
        body += part
    return int(first.split()[1]), headers, json.loads(body)


def request(path: str, *headers: str, method: str = "GET", body: bytes = b"") -> bytes:
    """A request as bytes."""
    lines = (f"{method} {path} HTTP/1.1", "Host: localhost", *headers)
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def is_closed(client: socket.socket, within_s: float) -> bool:
    """Whether the other side ends the connection."""
    client.settimeout(within_s)
    with suppress(ConnectionError):
        try:
            return client.recv(1) == b""
        except TimeoutError:
            return False
    return True


def test_a_head_without_end_is_refused_as_soon_as_it_is_too_large(url: str) -> None:
    heads = (b"X: " + b"x" * 4_000_000, b"GET /" + b"x" * 4_000_000, b"X: y\r\n" * 700_000)
    for n, flood in enumerate(heads):
        with connected(url) as client:
            # Little is under way at once: what was sent was taken, or nearly so.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
            client.sendall(b"" if n == 1 else b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
            sent = 0
            with suppress(ConnectionError):  # whoever is refused and goes on talking is cut off
                while sent < len(flood):
                    sent += client.send(flood[sent : sent + 16_384])
            assert sent < 2_000_000
            with suppress(ConnectionError):
                status, headers, said = answer(client)
                assert (status, said["error"]["code"]) == (431, "E-HEADERS-TOO-LARGE")
                assert headers["x-trace-id"] == said["trace_id"]
    whole = request("/healthz", "X: " + "x" * (protocol_limits.HEAD_BYTES + 1))
    with connected(url) as client:
        client.sendall(whole)
        assert answer(client)[0] == 431
    with connected(url) as client:
        client.sendall(request("/healthz", "X: " + "x" * (protocol_limits.HEAD_BYTES - 1_000)))
        assert answer(client)[0] == 200


@pytest.mark.parametrize("said", [b"nonsense\r\n\r\n", b"\x16\x03\x01\x00", b"GET /\xff HTTP/1.1\r\n\r\n"])
def test_what_is_no_http_is_refused_in_the_envelope(url: str, said: bytes) -> None:
    with connected(url) as client:
        client.sendall(said)
        status, headers, body = answer(client)
        assert (status, body["error"]["code"]) == (400, "E-BAD-INPUT")
        assert headers["x-request-id"]
        assert headers["content-type"] == "application/json"
        assert is_closed(client, 60)


def test_a_request_that_does_not_end_is_not_waited_for(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol_limits, "REQUEST_S", 0.5)
    late = (
        b"",
        b"GET /healthz HTTP/1.1\r\nHost: loc",
        request("/healthz") + b"GET /heal",
        request("/api/v1/jobs", "Content-Length: 1000", method="POST", body=b"{"),
    )
    with serving(dsn, admin_key=ADMIN) as url:
        for said in late:
            with connected(url) as client:
                client.sendall(said)
                give_up = time.monotonic() + 60
                while not is_closed(client, 0.1):
                    assert time.monotonic() < give_up, said
                    with suppress(ConnectionError):
                        client.sendall(b"x" if said else b"")  # a drop from time to time does not help


def is_answered(client: socket.socket) -> bool:
    """Whether a request is answered on a connection, which may be closed; the whole answer is taken."""
    try:
        client.sendall(request("/healthz"))
        return answer(client)[0] == 200
    except (ConnectionError, AssertionError):  # closed before the answer
        return False


def test_who_was_answered_may_stay_and_ask_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol_limits, "REQUEST_S", 0.5)
    for _ in range(20):  # on a slow machine a first request may be late
        with connected(url) as client:
            if not is_answered(client):
                continue
            with connected(url) as silent:
                assert is_closed(silent, 60)  # who came later and asks nothing is late by now
            assert is_answered(client)
            return
    raise AssertionError("no request was in time")


def test_a_connection_goes_on_after_a_body_that_was_refused(dsn: str) -> None:
    with serving(dsn, admin_key=ADMIN, max_body_bytes=1_000) as url, connected(url) as client:
        key = f"Authorization: Bearer {ADMIN}"
        large = b"x" * 5_000
        for headers, status in ((("Content-Length: 5000",), 401), ((key, "Content-Length: 5000"), 413)):
            client.sendall(request("/api/v1/jobs", *headers, method="POST"))
            assert answer(client)[0] == status
            client.sendall(large)
        client.sendall(request("/api/v1/jobs", key, "Transfer-Encoding: chunked", method="POST"))
        client.sendall(b"1388\r\n" + large + b"\r\n")
        assert answer(client)[0] == 413
        client.sendall(b"5\r\nGET /\r\n0\r\n\r\n")  # the rest of that body is no request
        client.sendall(request("/api/v1/jobs", key))
        assert answer(client)[2]["jobs"] == []


def test_names_that_could_be_anything_are_not_repeated(http: Caller) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    sane = {"X-Request-Id": "req-1.a_b:c", "traceparent": f"00-{trace}-00f067aa0ba902b7-01", "X-Trace-Id": "other"}
    headers = http.client.get("/healthz", headers=sane).headers
    assert (headers["x-request-id"], headers["x-trace-id"]) == ("req-1.a_b:c", trace)
    assert http.client.get("/healthz", headers={"X-Trace-Id": "t-1"}).headers["x-trace-id"] == "t-1"
    for odd in ("a b", "a\tb", "<script>", "a;b", "é", "x" * 129, "", "a%0d%0aX-Evil:1"):
        given = {"X-Request-Id": odd.encode("latin-1"), "X-Trace-Id": odd.encode("latin-1")}
        headers = http.client.get("/healthz", headers=[(name.encode(), value) for name, value in given.items()]).headers
        assert len(headers["x-request-id"]) == len(headers["x-trace-id"]) == 32
        assert "x-evil" not in headers


def test_the_log_shows_what_a_client_named_in_one_line(client: httpx2.Client, caplog: pytest.LogCaptureFixture) -> None:
    with mock.patch.object(Store, "contract", side_effect=Unavailable("the disk is full")):
        assert client.get("/api/v1/contracts/a%1B[31m%0Aforged%0D").status_code == 503
    with mock.patch.object(Store, "contract", side_effect=RuntimeError("a fault")):
        response = client.get("/api/v1/contracts/a%1B[31m%0Aforged%0D")
        assert (response.status_code, response.json()["error"]["code"]) == (500, "E-TENURE")
        assert "a fault" not in response.text
    said = [record.getMessage() for record in caplog.records if record.name == "tenure.http"]
    assert len(said) == 2
    assert all(line.isprintable() for line in said), said


async def test_a_client_that_leaves_in_the_middle_is_no_failure(
    client: httpx2.Client, url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)
    heard: list[str] = []
    read = application._receive

    async def seen(*given: Any) -> bytes:
        heard.append("begins")
        try:
            return await read(*given)
        finally:
            heard.append("ends")

    monkeypatch.setattr(application, "_receive", seen)
    for said in (b'{"type"', b""):
        heard.clear()
        with connected(url) as leaving:
            head = request("/api/v1/jobs", "Content-Type: application/json", "Content-Length: 100", method="POST")
            leaving.sendall(head + said)
            await until(lambda: heard == ["begins"])
        await until(lambda: heard == ["begins", "ends"])
    assert client.get("/readyz").status_code == 200  # by when all that there was to say of them was said
    assert [record.getMessage() for record in caplog.records] == []


async def test_a_client_that_left_while_it_waited_takes_no_job(
    http: Caller, url: str, db: Harness, waited: list[ClaimGroup]
) -> None:
    body = b'{"worker_id": "gone", "wait_seconds": 50}'
    with connected(url) as client:
        head = ("Content-Type: application/json", f"Content-Length: {len(body)}")
        client.sendall(request("/api/v1/claims", *head, method="POST", body=body))
        await until(lambda: bool(waited))
    job_id = int(http.enqueued())
    await until(lambda: waited[0].is_empty)
    assert (db.hops(job_id), db.row(job_id)["claims"]) == ([], 0)


def test_an_answer_is_sent_at_once(client: httpx2.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Head and body of an answer are two writes: without TCP_NODELAY the second waits 40 ms for the client."""
    options: list[int] = []
    begin = protocol_limits.LimitedProtocol._start_request_timer

    def seen(connection: protocol_limits.LimitedProtocol) -> None:
        begin(connection)
        own = connection.transport.get_extra_info("socket")
        options.append(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(protocol_limits.LimitedProtocol, "_start_request_timer", seen)
    client.get("/healthz")
    assert options
    assert all(options)
