"""Contracts: their lifecycles as drawings of their declarations."""

from __future__ import annotations

from collections import Counter
from typing import Any

from markupsafe import Markup

from tenure.contracts.diagram import to_svg
from tenure.contracts.stored_form import from_description
from tenure.dashboard.page import Page


async def contract_list(page: Page) -> dict[str, Any]:
    """The registered contracts."""
    found = await page.get("/api/v1/contracts")
    return {"contracts": found["contracts"]}


async def contract(page: Page) -> dict[str, Any]:
    """One contract: its drawing, its states and its paths."""
    shown = await page.get(f"/api/v1/contracts/{page.name}")
    stats = await page.try_get("/api/v1/stats", seconds=1.0, since_seconds=60)
    live: Counter[str] | None = None
    if stats is not None:
        live = Counter()
        for level in stats["live"]:
            if level["contract"] == shown["name"]:
                live[level["state"]] += level["jobs"]
    return {
        "live": live, "title": f"Contract {shown['name']}", "contract": shown, "declaration": shown["declaration"],
        "drawing": inline_svg(to_svg(from_description(shown["declaration"]))),
    }  # fmt: skip


def inline_svg(svg: str) -> Markup:
    """A drawing of ours as a part of a page. The page's style sheet has its style: the policy forbids it inside."""
    head, _, rest = svg.partition("<style>")
    return Markup(head + rest.partition("</style>")[2])
