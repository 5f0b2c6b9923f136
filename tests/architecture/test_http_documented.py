"""Every route of the dispatcher is in the reference, with its scopes; and every route of the reference exists."""

from __future__ import annotations

import re
from pathlib import Path

from tenure.http import error_response
from tenure.http.route import Route
from tenure.http.route_table import ROUTES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "http.md").read_text()
#: Those that the page names without a table.
_SERVICE = {"/openapi.json", "/healthz", "/readyz"}


def routes() -> list[Route]:
    return [route for route in ROUTES if route.path not in _SERVICE]


def test_every_route_is_documented_with_its_scopes() -> None:
    missing = []
    for route in routes():
        assert route.scopes is not None, f"{route.path} is not behind the guard"
        row = rf"^\| `{route.method} {re.escape(route.path)}` \| {', '.join(route.scopes) or 'any'} \|"
        is_holders = rf"^\|.*`(?:GET )?{re.escape(route.path)}`"  # in the table of what holders say
        if not re.search(row, PAGE, re.MULTILINE) and not (
            route.scopes == ("work",) and re.search(is_holders, PAGE, re.MULTILINE)
        ):
            missing.append(f"{route.method} {route.path}: {route.scopes}")
    assert missing == []


def test_every_documented_address_exists() -> None:
    named = set(re.findall(r"`(?:(?:GET|POST|PUT) )?(/(?:api|internal)[^`…?]*)`", PAGE))
    assert len(named) > 30
    assert named - {route.path for route in routes()} == set()


def test_every_code_of_the_dispatchers_own_is_documented() -> None:
    kinds = [
        kind
        for kind in vars(error_response).values()
        if isinstance(kind, type) and kind.__module__ == error_response.__name__
    ]
    assert len(kinds) > 4
    assert [kind.code for kind in kinds if f"`{kind.code}`" not in PAGE] == []  # type: ignore[attr-defined]
