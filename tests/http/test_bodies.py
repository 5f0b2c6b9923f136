"""Nothing that a client sends causes a 5xx: bodies, addresses, queries and methods that are wrong in every way.

On every route, each wrong body is refused with nothing written, and the right one is taken afterwards: so it was the
wrong place alone that was refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from pydantic import ValidationError

from tenure.http.routes import holding, jobs
from tests.conftest import Databases
from tests.harness import Harness
from tests.http.conftest import Caller, serving
from tests.http.inventory import ANY, BODIES, ROUTES, SCHEMA, Asked, Route, World
from tests.http.spoiled import spoiled, text
from tests.pooler import Pooler

#: Small, so that what is too large need not be large.
BODY_BYTES, PAYLOAD_BYTES = 400_000, 20_000
JSON = {"Content-Type": "application/json"}
#: How the library that checks bodies speaks, and we do not.
_LIBRARYS = re.compile("should (be|have|match)|Extra inputs|Field required|Value error|valid (dict|str|int)")
#: A failure must always be reportable: a NUL in what is said of it is escaped, and not refused.
_SAID = ("error", "error_message", "message", "stage")


class Target:
    """A dispatcher with small limits, and eyes in its database."""

    def __init__(self, url: str, db: Harness) -> None:
        self.client, self.db = httpx2.Client(base_url=url, timeout=30), db
        self.world = World(Caller(self.client))

    def send(self, route: Route, path: str, content: Any, **headers: str) -> httpx2.Response:
        """A request with these bytes as its body."""
        return self.client.request(route.method, path, content=content, headers={**JSON, **headers})

    def written(self) -> list[Any]:
        """All that the database holds of ours, as text; but not the live workers, noted every few seconds."""
        tables = self.db.sql(
            "select oid::regclass::text as name from pg_class where relnamespace = 'tenure'::regnamespace "
            "and relkind = 'r' and oid <> 'tenure.worker'::regclass and pg_relation_size(oid) > 0 order by 1"
        )
        return [self.db.sql(f"select md5(string_agg(t::text, '' order by t::text)) from {t['name']} t") for t in tables]


@pytest.fixture(scope="module")
def target(databases: Databases, pooler: Pooler | None) -> Iterator[Target]:
    """That dispatcher, one for this file."""
    with databases.lend() as dsn:
        limits = {"max_body_bytes": BODY_BYTES, "max_payload_bytes": PAYLOAD_BYTES}
        with serving(dsn, internal_run=True, **limits) as url, Harness(dsn) as db:
            target = Target(url, db)
            yield target
            target.client.close()
        if pooler is not None:
            pooler.let_go(dsn)


def refused(response: httpx2.Response, what: str) -> None:
    """Assert a refusal in its envelope, or a batch in which each is refused."""
    assert response.headers["x-request-id"], what
    assert response.headers["content-type"] == "application/json", what
    said = response.json()
    if response.status_code == 200 and said == {"status": "NotClaimed", "reason": "NotFound"}:
        return  # document 001 has no error for a claim: what cannot be a task's id is no task's
    if response.status_code == 200:
        answers = next(iter(said.values()))
        assert isinstance(answers, list), (what, said)
        assert answers, (what, said)
        assert all(set(one) == {"error"} for one in answers), (what, said)
        return
    assert 400 <= response.status_code < 500, (what, response.status_code, said)
    assert response.status_code not in (401, 403), (what, said)
    assert set(said) == {"error", "trace_id"}, (what, said)
    assert said["trace_id"] == response.headers["x-trace-id"], what
    assert set(said["error"]) == {"code", "message", "retryable", "hint"}, (what, said)
    assert not _LIBRARYS.search(said["error"]["message"]), (what, said)
    assert len(response.content) < 4_000, what


def _schema(route: Route) -> dict[str, Any]:
    described = SCHEMA["paths"][route.path][route.method.lower()]["requestBody"]
    return dict(described["content"]["application/json"]["schema"])


def _is_optional(route: Route) -> bool:
    """Whether the route may be called without a body, which `null` is the same as."""
    return not SCHEMA["paths"][route.path][route.method.lower()]["requestBody"].get("required", False)


def _bodies(route: Route, asked: Asked) -> Iterator[tuple[str, Any]]:
    """Bodies that no route takes."""
    right = text(asked.body)
    if not _is_optional(route):
        yield from (("null", b"null"), ("empty", b""))
    yield from (("a list", b"[]"), ("a list of it", b"[" + right + b"]"), ("a number", b"7"), ("a text", b'"text"'))
    yield from (("no JSON", b"nonsense"), ("truncated", right[:-1]), ("half", right[: len(right) // 2] + b'"'))
    yield from (("more after it", right + b"}"), ("invalid UTF-8", b'{"a": "\xff"}'), ("UTF-8 alone", b"\xff\xfe\xfa"))
    yield from (("deep lists", b"[" * 10_000), ("deep and closed", b'{"a":' * 10_000 + b"1" + b"}" * 10_000))
    yield ("an unknown field", text({**(asked.body or {}), "unknown": 1}))
    yield ("many unknown fields", text({**(asked.body or {}), **{f"x{n}": 1 for n in range(1_000)}}))
    yield ("a number of too many digits", b'{"a": ' + b"9" * 5_000 + b"}")
    yield ("announced and too large", b" " * BODY_BYTES + right)
    yield ("too large in parts", iter([b" " * (BODY_BYTES // 2)] * 3))
    for name, value in (asked.body or {}).items():
        twice = text({name: value})[1:-1]
        yield (f"{name} twice", right[:-1] + b", " + twice + b"}")


@pytest.mark.parametrize("route", BODIES, ids=str)
def test_a_wrong_body_is_refused_and_nothing_is_written(target: Target, route: Route) -> None:
    asked = target.world.request(route)
    before = target.written()
    for what, content in _bodies(route, asked):
        response = target.send(route, asked.path, content)
        refused(response, what)
        assert response.status_code == 413 or "too large" not in what
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "json"):
        refused(target.send(route, asked.path, text(asked.body), **{"Content-Type": kind}), f"of the type {kind!r}")
    assert target.written() == before
    taken = target.send(route, asked.path, text(asked.body))
    assert taken.status_code in (200, 201), taken.text


@pytest.mark.parametrize("route", BODIES, ids=str)
def test_a_wrong_value_in_any_field_is_refused_and_nothing_is_written(target: Target, route: Route) -> None:
    asked, tried = target.world.request(route), 0
    before = target.written()
    for what, body in spoiled(SCHEMA["components"]["schemas"], _schema(route), asked.body, PAYLOAD_BYTES):
        if what.startswith(_SAID) and r"\x00" in what and not what.startswith("error ="):
            continue
        tried += 1
        refused(target.send(route, asked.path, text(body)), what)
    assert tried > 5
    assert target.written() == before
    taken = target.send(route, asked.path, text(asked.body))
    assert taken.status_code in (200, 201), taken.text


def test_a_flood_of_unknown_fields_is_one_fault() -> None:
    """Each fault that is described takes a kilobyte: a body of 16 MiB took the dispatcher two gigabytes."""
    flood = {f"x{n}": 0 for n in range(10_000)}
    for model, body in (
        (jobs.Enqueue, flood),
        (jobs.EnqueueMany, {"jobs": [flood]}),
        (holding.Fail, {"error": flood}),
    ):
        with pytest.raises(ValidationError) as error:
            model.model_validate(body)
        assert error.value.error_count() < 5


def test_a_failure_with_a_nul_in_it_is_reported_all_the_same(target: Target) -> None:
    job_id, shown = target.world.held()
    error = {"type": "E\x00", "message": "a\x00b", "code": "\x00", "stack": "\x00", "stage": "\x00"}
    target.world.http.post(f"/api/v1/jobs/{job_id}/fail", {**shown, "error": error})
    stored = target.world.http.get(f"/api/v1/jobs/{job_id}")["last_error"]
    assert (stored["type"], stored["message"]) == ("E\\x00", "a\\x00b")


_IDS = (
    "0",
    "%7B%7D",
    "%7Bjob_id%7D",
    "9" * 19,
    "9" * 20,
    "-1",
    "1.5",
    "abc",
    "%00",
    "%D9%A1",
    "1%0A",
    "%0D%0AX-Evil:%201",
    "%FF",
    "%20",
    "1e3",
)


#: Any of these may be the name of a schedule or of a dataset.
_BY_NAME = ("{schedule}", "{dataset}")
_NAMED = [route for route in ROUTES if "{" in route.path and not any(name in route.path for name in _BY_NAME)]


@pytest.mark.parametrize("route", _NAMED, ids=str)
def test_an_id_that_no_job_can_have_is_refused(target: Target, route: Route) -> None:
    body = None
    if route.takes_body:
        body = text(target.world.request(route).body)
    for one in _IDS:
        path = route.path.format(**dict.fromkeys(ANY, one))
        response = target.send(route, path, body)
        refused(response, path)
        assert response.status_code in (404, 422), path
        assert "x-evil" not in response.headers


_QUERIES = {
    "/api/v1/flows": ["limit=0", "limit=1001", "state=broken", "state=", "name=", "cursor=0", "cursor=x", "tenant_id="],
    "/api/v1/flows/1": ["limit=-1", "limit=1001", "cursor=0", "cursor=x", "nodes=1"],
    "/api/v1/jobs": [
        "limit=0", "limit=1001", "limit=-1", "limit=abc", "limit=1.5", "limit=" + "9" * 30, "limit=%00", "cursor=0",
        "cursor=-1", "cursor=" + "9" * 19, "cursor=abc", "cursor=%00", "q=%00", "q=type:%00", "q=nonsense",
        "q=type:%FF%00", "q=age:>1000000000000d", "q=age:>" + "9" * 500 + "d", "q=" + "x" * 1_001, 'q=type:"',
        "q=type:a%20type:b", "q=state:" + "x" * 100, "limit=1&limit=0",
    ],
    "/api/v1/dlq/items": [
        "limit=0", "limit=1001", "cursor=0", "cursor=" + "9" * 20, "status=nonsense", "status=%00", "contract=%00",
        "contract=none", "contract=" + "x" * 101, "tenant_id=%00", "tenant_id=" + "x" * 101, "tenant_id=",
    ],
    "/api/v1/datasets": ["limit=0", "cursor=0", "cursor=abc", "tenant_id=%00", "tenant_id=" + "x" * 101],
    "/api/v1/datasets/prices": ["tenant_id=%00", "unknown=1"],
    "/api/v1/datasets/prices/generations": [
        "number=0", "number=" + "9" * 30, "limit=101", "cursor=0", "cursor=" + "9" * 19,
    ],
    "/api/v1/dataset-generations": ["", "flow_id=abc", "flow_id=" + "9" * 20],
    "/api/v1/dataset-generations/1/rows": [
        "scope=" + "x" * 201, "scope=%00", "after=x", "after=%00", "after=[]", "after=" + "x" * 2_001, "limit=1001",
        "after=%5B%22%22,1,%22%5Cu0000%22%5D", "after=%5B%22%5Cud800%22,1,%22a%22%5D", "after=%5B%22%22,99,%22%22%5D",
        "after=%5B%22%22," + "9" * 30 + ",%22%22%5D", "after=" + "%5B" * 600, "after=%5B%22%22,1,null,1%5D",
    ],
    "/api/v1/dataset-generations/1/pointers": ["after=%00", "after=" + "x" * 201, "limit=0"],
    "/api/v1/dataset-switches": ["dataset=%00", "cursor=0", "limit=101", "tenant_id=%00"],
    "/api/v1/dataset-subscriptions": ["dataset=%00", "tenant_id=%00"],
    "/api/v1/wakeups": [
        "wait_seconds=61", "wait_seconds=-1", "wait_seconds=inf", "wait_seconds=nan", "wait_seconds=abc",
        "wait_seconds=1e999", "after=" + "x" * 65,
    ],
}  # fmt: skip


@pytest.mark.parametrize(("path", "query"), [(path, query) for path, queries in _QUERIES.items() for query in queries])
def test_a_wrong_query_is_refused(target: Target, path: str, query: str) -> None:
    if path.startswith("/api/v1/dataset"):
        target.world.dataset()
    refused(target.client.get(f"{path}?{query}"), query)


def test_a_wrong_query_of_a_run_is_refused_and_the_job_stays(target: Target) -> None:
    job_id = target.world.job("gate_b2")
    before = target.written()
    for query in ("force_fail=perhaps", "transient_fail=%00", "force_fail=1&transient_fail=1"):
        refused(target.client.post(f"/api/v1/internal/jobs/{job_id}/run?{query}"), query)
    assert target.written() == before


def test_a_body_that_is_null_is_refused_also_where_no_body_is_needed(target: Target) -> None:
    before = target.written()
    for path in ("/api/v1/jobs/1/requeue", "/api/v1/jobs/1/cancel", "/api/v1/claims", "/api/v1/jobs"):
        response = target.client.post(path, content=b"null", headers={"Content-Type": "application/json"})
        refused(response, path)
        assert (
            response.status_code,
            "the body must be an object, not null" in response.json()["error"]["message"],
        ) == (422, True)
    assert target.written() == before


def test_a_cursor_that_nobody_gave_hears_that_it_may_be_anything(target: Target) -> None:
    for after in ("", "x", "%00", "a.b", "x." + "9" * 30, "%D9%A1.%D9%A1", "."):
        said = target.client.get(f"/api/v1/wakeups?after={after}&wait_seconds=60").json()
        assert said["wakeups"] == [{"contract": "", "queue": ""}]


@pytest.mark.parametrize("path", sorted({route.path for route in ROUTES} | {"/healthz", "/readyz"}))
def test_a_method_that_an_address_does_not_take_is_refused(target: Target, path: str) -> None:
    taken = {route.method for route in ROUTES if route.path == path} or {"GET"}
    where = path.format(**ANY)
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"} - taken:
        response = target.client.request(method, where, content=b"{nonsense")
        refused(response, method)
        assert (response.status_code, response.json()["error"]["code"]) == (405, "METHOD_NOT_ALLOWED")
        assert set(response.headers["allow"].split(", ")) == taken
    head = target.client.head(where)
    assert (head.status_code, head.content) == (405, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/", "/api", "/api/v1", "/api/v1/", "/api/v1/jobs/", "/API/V1/JOBS", "//api/v1/jobs", "/docs", "/redoc",
        "/api/v1/jobs/1/unknown", "/healthz/", "/%2e%2e/etc/passwd", "/%00", "/%FF",
        "/" + "x" * 10_000, "/metrics;a=b",
    ],
)  # fmt: skip
def test_an_unknown_address_is_said_to_be_one(target: Target, path: str) -> None:
    for method in ("GET", "POST"):
        response = target.client.request(method, path)
        refused(response, path)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "NOT_FOUND")


def test_a_batch_refuses_its_wrong_parts_alone(target: Target) -> None:
    job_id, shown = target.world.held()
    jobs = [{"type": "a"}, {"type": "a\x00"}, {"type": "b", "contract": "none"}, {"type": "c", "payload": "\ud800"}]
    made = json.loads(target.client.post("/api/v1/jobs/batch", content=text({"jobs": jobs}), headers=JSON).text)["jobs"]
    assert [set(one) for one in made] == [{"id", "made"}, {"error"}, {"error"}, {"error"}]
    finishes = [
        {**shown, "id": "999999", "verb": "succeed"},
        {**shown, "id": job_id, "verb": "succeed", "result": "a\x00"},
        {**shown, "id": job_id, "verb": "succeed", "result": 1},
        {**shown, "id": job_id, "verb": "fail", "result": 1},
    ]
    said = target.world.http.post("/api/v1/finishes", {"finishes": finishes})["answers"]
    assert [one.get("error", {}).get("code") for one in said] == ["JOB_NOT_FOUND", "E-BAD-INPUT", None, "E-BAD-INPUT"]
