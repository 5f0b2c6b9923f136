"""The short way to a route and the framework's own answer alike, whatever comes; and who takes which."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
from fastapi import FastAPI
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from tenure.http import claims, holding, jobs, letters, operators, rehearsal, tasks
from tenure.http.callers import Keyring
from tenure.http.desk import Desk
from tenure.http.guard import Guarded, RequestIds
from tenure.http.server import application
from tenure.http.ways import Short
from tenure.postgres.store import Store

PARTS = (jobs, claims, holding, operators, letters, tasks, rehearsal)
ROUTES: list[BaseRoute] = [route for part in PARTS for route in part.router.routes]
#: Where a route's path has an id.
PLACE = {
    route.path: next((name for name in ("{job_id}", "{letter_id}", "{name}") if name in route.path), "")
    for route in ROUTES
    if isinstance(route, Guarded)
}
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


class Nowhere:
    """A framework that nothing reaches."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError(f"{scope['path']} took the long way")


def test_what_workers_say_takes_the_short_way() -> None:
    async def never(*_: Any) -> Any:
        raise AssertionError

    ways = Short(Nowhere(), ROUTES, refused=never, failed=never)._ways
    assert {
        ("POST", "/api/v1/claims"), ("POST", "/api/v1/jobs/{}/succeed"), ("POST", "/api/v1/finishes"),
        ("POST", "/api/v1/heartbeats"), ("POST", "/api/v1/jobs"), ("POST", "/api/v1/jobs/batch"),
        ("POST", "/internal/task-claim"), ("POST", "/internal/task-complete"), ("POST", "/internal/heartbeat"),
    } <= set(ways)  # fmt: skip
    assert not {method for method, _ in ways} - {"POST", "PUT"}, "what is looked at has queries, and no body"
    assert ("POST", "/api/v1/internal/jobs/{}/run") not in ways, "it has a query"
    assert ("POST", "/api/v1/jobs/{}/cancel") not in ways, "its body may be absent"


async def test_both_ways_refuse_with_the_same_words(store: Store) -> None:
    app = application(Desk(store), Keyring(store, "tenure_admin"), max_body_bytes=500_000)
    framework = RequestIds(FastAPI.build_middleware_stack(app))

    async def long(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = app
        await framework(scope, receive, send)

    def client(way: Any) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=way), base_url="http://127.0.0.1")

    seen = set()
    async with client(app) as short, client(long) as other:
        for method, path, body, headers in _requests():
            answers = [await way.request(method, path, content=body, headers=headers) for way in (short, other)]
            told = [(one.status_code, {**one.json(), "trace_id": ""}, _kept(one)) for one in answers]
            assert told[0] == told[1], (path, body[:100], headers)
            seen.add(answers[0].status_code)
    assert {200, 401, 404, 413, 422} <= seen <= {200, 401, 403, 404, 409, 413, 422}


def _requests() -> Iterator[tuple[str, str, bytes, dict[str, str]]]:
    """Everything odd to every route that takes something; to other ids, some of it."""
    for route in ROUTES:
        if not isinstance(route, Guarded) or "GET" in (route.methods or ()):
            continue
        for method in route.methods or ():
            yield from ((method, _at(route.path, "99"), *odd) for odd in ODD)
            if PLACE[route.path]:
                ids = ("0", "9" * 19, "9" * 20, "x", "٣", "9%2F9")
                yield from ((method, _at(route.path, one), *odd) for one in ids for odd in ODD[6:9])


def _at(path: str, job_id: str) -> str:
    return path.replace(PLACE[path], job_id) if PLACE[path] else path


def _kept(answer: httpx2.Response) -> dict[str, str]:
    """The headers, but for the ids of this very request."""
    assert answer.headers["x-request-id"]
    assert answer.headers["x-trace-id"]
    return {name: value for name, value in answer.headers.items() if name not in ("x-request-id", "x-trace-id")}
