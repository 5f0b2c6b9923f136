"""Every route of the dispatcher is in the reference, with its scopes; and every route of the reference exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fastapi.routing import APIRoute

from tenure.http import claims, holding, jobs, letters, operators, refusals, rehearsal, tasks
from tenure.http.guard import Guarded

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "http.md").read_text()
PARTS: list[Any] = [jobs, claims, holding, operators, letters, tasks, rehearsal]


def routes() -> list[APIRoute]:
    return [route for part in PARTS for route in part.router.routes if isinstance(route, APIRoute)]


def test_every_route_is_documented_with_its_scopes() -> None:
    missing = []
    for route in routes():
        assert isinstance(route, Guarded), f"{route.path} is not behind the guard"
        (method,) = route.methods or {"none"}
        row = rf"^\| `{method} {re.escape(route.path)}` \| {', '.join(route.scopes) or 'any'} \|"
        is_holders = rf"^\|.*`(?:GET )?{re.escape(route.path)}`"  # in the table of what holders say
        if not re.search(row, PAGE, re.MULTILINE) and not (
            route.scopes == ("work",) and re.search(is_holders, PAGE, re.MULTILINE)
        ):
            missing.append(f"{method} {route.path}: {route.scopes}")
    assert missing == []


def test_every_documented_address_exists() -> None:
    named = set(re.findall(r"`(?:(?:GET|POST|PUT) )?(/(?:api|internal)[^`…?]*)`", PAGE))
    assert len(named) > 30
    assert named - {route.path for route in routes()} == set()


def test_every_code_of_the_dispatchers_own_is_documented() -> None:
    kinds = [
        kind for kind in vars(refusals).values() if isinstance(kind, type) and kind.__module__ == refusals.__name__
    ]
    assert len(kinds) > 4
    assert [kind.code for kind in kinds if f"`{kind.code}`" not in PAGE] == []  # type: ignore[attr-defined]
