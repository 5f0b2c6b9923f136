"""Every route authenticates before anything else; the cases come from the application's own routes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tenure.http import application
from tenure.jobs.api_key import SCOPES
from tests.conftest import Databases
from tests.harness import Harness
from tests.http.conftest import Caller, new_key, serving
from tests.http.inventory import _REQUESTS, ABOUT_ALL, ANY, BODIES, OPEN, ROUTES, Route, World
from tests.pooler import Pooler

ADMIN = "tenure_" + "a" * 43


class Keyed:
    """A dispatcher that asks for keys, with the keys of this file."""

    def __init__(self, url: str, keys: dict[str, str]) -> None:
        self.url, self.keys = url, keys
        self.client = httpx2.Client(base_url=url, timeout=30)
        self.admin = Caller(httpx2.Client(base_url=url, timeout=30, headers=bearer(keys["an admin of flesh"])))

    def ask(self, route: Route, key: str | None, path: str | None = None, **request: Any) -> httpx2.Response:
        """A request with the key of this name, about nothing in particular where no path is given."""
        where = path or route.path.format(**ANY)
        headers = {**request.pop("headers", {}), **(bearer(self.keys[key]) if key else {})}
        return self.client.request(route.method, where, headers=headers, **request)


def bearer(key: str) -> dict[str, str]:
    """The header that carries a key."""
    return {"Authorization": f"Bearer {key}"}


def _made(dsn: str) -> dict[str, str]:
    """Keys: one of each scope, two tenants', a revoked and an expired one."""
    keys = {scope: new_key(dsn, scope, scope, person="Ann" if scope == "approve" else None) for scope in SCOPES}
    for tenant, person in (("a", "Cleo"), ("b", "Ben")):
        keys[f"tenant {tenant}"] = new_key(dsn, f"tenant {tenant}", *SCOPES[:-1], tenant=tenant, person=person)
    keys["an admin of flesh"] = new_key(dsn, "an admin of flesh", "admin", person="Ann")
    for name in ("revoked", "expired"):
        keys[name] = new_key(dsn, name, "admin", revoked=name == "revoked")
    return keys


@pytest.fixture(scope="module")
def keyed(databases: Databases, pooler: Pooler | None) -> Iterator[Keyed]:
    """That dispatcher, one for this file: no test here depends on what another left."""
    with databases.lend() as dsn:
        keys = _made(dsn)
        with Harness(dsn) as db:
            db.sql("update tenure.api_key set expires_at = now() - interval '1 second' where name = 'expired'")
        with serving(dsn, admin_key=ADMIN, internal_run=True) as url:
            found = Keyed(url, keys)
            yield found
            found.client.close()
            found.admin.client.close()
        if pooler is not None:
            pooler.let_go(dsn)


def refused(response: httpx2.Response, status: int, code: str) -> None:
    """Assert a refusal in its envelope, with the ids in the headers."""
    assert (response.status_code, response.json()["error"]["code"]) == (status, code), response.text
    assert set(response.json()["error"]) == {"code", "message", "retryable", "hint"}
    assert response.json()["trace_id"] == response.headers["x-trace-id"]
    assert response.headers["x-request-id"]


def test_a_request_is_known_for_every_route_and_for_no_other() -> None:
    assert {route.key for route in ROUTES} == set(_REQUESTS)
    assert len(ROUTES) > 40
    assert not OPEN & {route.key for route in ROUTES}


@pytest.mark.parametrize("route", ROUTES, ids=str)
def test_nobody_gets_in_without_a_live_key(keyed: Keyed, route: Route) -> None:
    refused(keyed.ask(route, None), 401, "AUTH_REQUIRED")
    for name in ("revoked", "expired"):
        refused(keyed.ask(route, name), 401, "AUTH_REQUIRED")
    odd = ["Bearer tenure_nobody", "Bearer", f"Basic {keyed.keys['admin']}", "", keyed.keys["admin"]]
    for text in odd:
        response = keyed.ask(route, None, headers={"Authorization": text})
        refused(response, 401, "AUTH_REQUIRED")
        assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("route", ROUTES, ids=str)
def test_a_key_opens_what_its_scope_is_for_and_nothing_else(keyed: Keyed, route: Route) -> None:
    for scope in SCOPES:
        response = keyed.ask(route, "an admin of flesh" if scope == "admin" else scope)  # some things people decide
        if route.scopes and scope not in (*route.scopes, "admin"):
            refused(response, 403, "AUTH_FORBIDDEN")
        else:
            assert response.status_code not in (401, 403), response.text


@pytest.mark.parametrize("route", BODIES, ids=str)
def test_who_asks_is_known_before_the_body_is_read(keyed: Keyed, route: Route) -> None:
    garbage: dict[str, Any] = {"content": b"{nonsense", "headers": {"Content-Type": "application/json"}}
    refused(keyed.ask(route, None, **garbage), 401, "AUTH_REQUIRED")
    wrong = next(scope for scope in SCOPES if scope not in (*route.scopes, "admin"))
    refused(keyed.ask(route, wrong, **garbage), 403, "AUTH_FORBIDDEN")
    for key, status in ((None, b"401"), (wrong, b"403")):
        assert _announced(keyed, route, key).startswith(b"HTTP/1.1 " + status)


def _announced(keyed: Keyed, route: Route, key: str | None) -> bytes:
    """What a client hears that announces ten megabytes and sends none of them."""
    address = httpx2.URL(keyed.url)
    path = route.path.format(**ANY)
    lines = [f"{route.method} {path} HTTP/1.1", f"Host: {address.host}", "Content-Type: application/json"]
    lines += ["Content-Length: 10000000", *([f"Authorization: Bearer {keyed.keys[key]}"] if key else []), "", ""]
    # Whoever waits for the body waits in vain, and then says so (408).
    with socket.create_connection((address.host, address.port or 80), timeout=2 * application._BODY_S) as client:
        client.sendall("\r\n".join(lines).encode())
        return client.recv(4096)


@pytest.mark.parametrize("route", [route for route in ROUTES if route.names_one], ids=str)
def test_a_key_of_one_tenant_moves_and_sees_no_job_of_another(keyed: Keyed, route: Route) -> None:
    asked = World(keyed.admin, "a").request(route)
    body = asked.body and {name: value for name, value in asked.body.items() if name != "person"}
    refused(keyed.ask(route, "tenant b", asked.path, json=body), 403, "TENANT_SCOPE_VIOLATION")
    own = keyed.ask(route, "tenant a", asked.path, json=body)
    assert own.status_code == 200, own.text


@pytest.mark.parametrize("route", [route for route in ROUTES if route.key in ABOUT_ALL], ids=str)
def test_what_concerns_all_tenants_is_not_told_to_one(keyed: Keyed, route: Route) -> None:
    asked = World(keyed.admin).request(route)
    refused(keyed.ask(route, "tenant a", asked.path, json=asked.body), 403, "TENANT_SCOPE_VIOLATION")


@pytest.mark.parametrize("path", ["/api/v1/jobs/batch", "/api/v1/finishes", "/api/v1/starts", "/api/v1/heartbeats"])
def test_in_a_batch_what_is_another_tenants_is_refused_by_itself(keyed: Keyed, path: str) -> None:
    route = next(route for route in ROUTES if route.path == path)
    (name, (theirs,)), (_, (ours,)) = (
        next(iter((World(keyed.admin, tenant).request(route).body or {}).items())) for tenant in ("a", "b")
    )
    response = keyed.ask(route, "tenant b", json={name: [theirs, ours]})
    first, second = next(iter(response.json().values()))
    assert first["error"]["code"] == "TENANT_SCOPE_VIOLATION"
    assert "error" not in second


def test_lists_claims_and_new_jobs_stay_within_a_tenant(keyed: Keyed) -> None:
    theirs, ours = World(keyed.admin, "a"), World(keyed.admin, "b")
    letter, own_letter, job, own_job = theirs.letter(), ours.letter(), theirs.job(), ours.job()
    with httpx2.Client(base_url=keyed.url, headers=bearer(keyed.keys["tenant b"]), timeout=30) as client:
        http = Caller(client)
        jobs = http.get("/api/v1/jobs", limit=1_000)["jobs"]
        assert {one["tenant_id"] for one in jobs} == {"b"}
        assert own_job in {one["id"] for one in jobs}
        items = http.get("/api/v1/dlq/items", limit=1_000)["items"]
        assert {one["tenant_id"] for one in items} == {"b"}
        assert own_letter in {one["dlq_id"] for one in items}
        assert letter not in {one["dlq_id"] for one in items}
        won = http.claimed(queues=["world"], limit=1_000)
        assert {claim["job"]["tenant_id"] for claim in won} == {"b"}
        assert own_job in {claim["job"]["id"] for claim in won}
        assert keyed.admin.get(f"/api/v1/jobs/{job}")["state"] == "queued"
        assert http.post("/api/v1/jobs", {"type": "t"}, status=201)["tenant_id"] == "b"
        assert http.get("/api/v1/jobs", status=403, q="tenant:a")["error"]["code"] == "TENANT_SCOPE_VIOLATION"
        assert http.get("/api/v1/dlq/items", status=403, tenant_id="a")["error"]["code"] == "TENANT_SCOPE_VIOLATION"
        http.refused("/api/v1/jobs", {"type": "t", "tenant_id": "a"}, 403, "TENANT_SCOPE_VIOLATION")


@pytest.mark.parametrize("contract", ["standard", "phase27", "dispatcher", "reliability", "simple", "gate_b2"])
def test_a_lease_token_is_shown_to_those_alone_who_may_hold(keyed: Keyed, contract: str) -> None:
    job_id, shown = World(keyed.admin).held(contract)
    for path in (f"/api/v1/jobs/{job_id}", f"/api/v1/jobs/{job_id}/events", "/api/v1/jobs?limit=1000"):
        for scope in ("enqueue", "operate"):
            said = keyed.client.get(path, headers=bearer(keyed.keys[scope])).text
            assert shown["lease_token"] not in said, (path, scope)
    record = keyed.admin.get(f"/api/v1/jobs/{job_id}")["record"]
    assert record.get("lease_token", shown["lease_token"]) == shown["lease_token"]


def test_health_needs_no_key_and_says_nothing(keyed: Keyed) -> None:
    for path in ("/healthz", "/readyz"):
        assert keyed.client.get(path).json() == {"status": "ok"}
