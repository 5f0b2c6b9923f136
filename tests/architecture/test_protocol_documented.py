"""The protocol page has every route of a worker, and its tables have exactly the fields of the OpenAPI."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tenure.contracts import BUILT_IN
from tenure.http.openapi import openapi_document
from tenure.http.route_table import ROUTES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "protocol.md").read_text(encoding="utf-8")
_TABLE = re.compile(
    r"^(Sent|Answered) \(`(\w+)` in the OpenAPI\):\n\n\| field \| \|\n\|---\|---\|\n((?:\|.*\|\n)+)",
    re.MULTILINE,
)
DOCUMENT = openapi_document(ROUTES)
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
TABLES = {name: (kind, rows) for kind, name, rows in _TABLE.findall(PAGE)}
#: Routes of workers that the page leaves to the reference: hints for pollers, options of types, effects, schedules.
_ELSEWHERE = {
    "/api/v1/due", "/api/v1/wakeups", "/api/v1/types", "/api/v1/jobs/{job_id}/effects", "/api/v1/schedules",
    "/api/v1/dataset-subscriptions",
}  # fmt: skip
#: Lists of one field, which the page describes in words.
_IN_WORDS = {
    "StartMany", "HeartbeatMany", "FinishMany", "StartAnswers", "HeartbeatAnswers", "FinishAnswers", "WorkerName",
    "EffectUndone",
}  # fmt: skip


def rows_of(table: str) -> dict[str, str]:
    return dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE))


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_the_fields_of_the_openapi(name: str) -> None:
    kind, table = TABLES[name]
    rows, schema = rows_of(table), SCHEMAS[name]
    assert list(rows) == list(schema["properties"])
    assert [field for field, text in rows.items() if not text] == []
    if kind == "Sent":
        marked = {field for field, text in rows.items() if text.startswith("**Required.**")}
        assert marked == set(schema.get("required", ()))


def named_in(schema: Any) -> set[str]:
    """The schemas that a body consists of at its top."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return {name} if "properties" in SCHEMAS[name] else named_in(SCHEMAS[name])
    return {name for one in schema.get("anyOf", schema.get("oneOf", ())) for name in named_in(one)}


def test_every_body_of_a_workers_route_has_its_table() -> None:
    worked = [route for route in ROUTES if route.scopes == ("work",) and route.path not in _ELSEWHERE]
    assert len(worked) > 20
    for route in worked:
        assert f"`{route.method} {route.path}`" in PAGE, route.path
        operation = DOCUMENT["paths"][route.path][route.method.lower()]
        bodies = [operation["requestBody"], operation["responses"]["200"]]
        needed = set[str]().union(*(named_in(body["content"]["application/json"]["schema"]) for body in bodies))
        assert needed - set(TABLES) - _IN_WORDS == set(), route.path


def test_every_route_on_the_page_exists() -> None:
    known = {(route.method, route.path) for route in ROUTES}
    named = set(re.findall(r"`(GET|POST|PUT) (/[^`?]+)`", PAGE))
    assert len(named) > 20
    assert named <= known


def test_every_reason_not_to_claim_has_its_row() -> None:
    described = SCHEMAS["NotClaimed"]["properties"]["reason"]["description"]
    reasons = set(re.findall(r"[A-Z]\w+", described))
    ends = {"Completed", "Canceled", "Failed"}
    assert ends <= set(BUILT_IN["dispatcher"].states)
    firsts = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", PAGE, re.MULTILINE)
    rows = {reason for first in firsts for reason in first.split(", ")}
    assert {f"`{reason}`" for reason in reasons | ends} <= rows
