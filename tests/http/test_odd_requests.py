"""Every route answers odd requests in the error envelope, with a status of its own kind and both ids."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import httpx2

from tenure.http.application import Application
from tenure.http.authentication import Keyring
from tenure.http.job_calls import JobCalls
from tenure.http.route_table import ROUTES
from tenure.postgres.store import Store

KEY = {"Authorization": "Bearer tenure_admin", "Content-Type": "application/json"}
TOKEN = "0b0e7f0a-5f0e-4f57-9d0c-3f3f6f1a2b4c"
#: Each with the headers that it comes with.
ODD: list[tuple[bytes, dict[str, str]]] = [
    (b"", KEY),
    (b"", {}),
    (b"{}", {"Content-Type": "application/json"}),
    (b"{}", {**KEY, "Authorization": "Bearer tenure_other"}),
    (b"{}", {**KEY, "Content-Type": "text/plain"}),
    (b"{}", {**KEY, "Idempotency-Key": "not a uuid"}),
    *(
        (body, KEY)
        for body in (
            b"{}", b"null", b"[]", b"7", b'"text"', b"{", b"\xff", b'{"claims": Infinity}', b'{"odd": 1}',
            b"[" * 100_000, b'{"worker_id": ""}', b'{"jobs": []}', b'{"jobs": [{"type": 1}, {}]}', b'{"queues": "x"}',
            json.dumps({"claims": 1, "lease_token": TOKEN}).encode(),
            json.dumps({"claims": "1", "lease_token": "x", "\ud800": "\ud800"}).encode(),
            json.dumps({"task_id": "99", "attempt": 1, "lease_token": TOKEN, "status": "Done"}).encode(),
            json.dumps({"finishes": [{"id": "99", "claims": 1, "lease_token": TOKEN, "verb": "succeed"}]}).encode(),
            b'{"result": "' + b"x" * 1_000_000 + b'"}',
        )
    ),
]  # fmt: skip
#: What stands in a path in place of an id.
IDS = ("0", "9" * 19, "9" * 20, "x", "٣", "9%2F9", "{job_id}", "{}", "")


async def test_every_route_answers_odd_requests_in_the_envelope(store: Store) -> None:
    app = Application(ROUTES, max_body_bytes=500_000)
    app.connect(JobCalls(store), Keyring(store, "tenure_admin"))
    transport = httpx2.ASGITransport(app=app)
    seen = set()
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for method, path, body, headers in _requests():
            answer = await client.request(method, path, content=body, headers=headers)
            which = (method, path, body[:100], headers)
            assert answer.headers["x-request-id"], which
            if answer.status_code != 200:
                assert answer.json()["trace_id"] == answer.headers["x-trace-id"], which
                assert set(answer.json()["error"]) == {"code", "message", "retryable", "hint"}, which
            seen.add(answer.status_code)
    assert {200, 401, 404, 413, 422} <= seen <= {200, 401, 403, 404, 405, 409, 413, 422}


async def test_a_bad_id_and_a_bad_body_are_told_together(store: Store) -> None:
    app = Application(ROUTES)
    app.connect(JobCalls(store), Keyring(store, "tenure_admin"))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1") as client:
        both = await client.post("/api/v1/jobs/x/transition", json={"odd": 1}, headers=KEY)
        query = await client.get("/api/v1/jobs/x/events?limit=0", headers=KEY)
    assert both.json()["error"]["message"] == (
        "job_id must be a text of 1 to 19 digits, not x; to is missing; there is no field odd"
    )
    assert query.json()["error"]["message"] == (
        "job_id must be a text of 1 to 19 digits, not x; limit must be a whole number from 1 to 1000, not 0"
    )


def _requests() -> Iterator[tuple[str, str, bytes, dict[str, str]]]:
    """Everything odd to every route that takes something; to other ids, some of it."""
    for route in ROUTES:
        if route.method == "GET":
            continue
        yield from ((route.method, _at(route.path, "99"), *odd) for odd in ODD)
        if "{" in route.path:
            yield from ((route.method, _at(route.path, one), *odd) for one in IDS for odd in ODD[6:9])


def _at(path: str, one: str) -> str:
    return re.sub(r"\{\w+\}", one, path)


async def test_a_path_with_a_slash_at_its_end_is_no_route(store: Store) -> None:
    app = Application(ROUTES)
    app.connect(JobCalls(store), Keyring(store, "tenure_admin"))
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for route in ROUTES:
            path = re.sub(r"\{\w+\}", "42", route.path)
            answer = await client.request(route.method, f"{path}/", content=b"{}", headers=KEY)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "NOT_FOUND"), path
