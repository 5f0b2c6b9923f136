"""Contracts: their lifecycles as drawings with live counts, and whether they keep the promises of every contract."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from markupsafe import Markup

from tenure.contracts.diagram import CountedDrawing, Counts
from tenure.contracts.stored_form import from_description
from tenure.dashboard.page import Page

#: Counts cost more than a list: open pages share them for this many seconds.
_COUNTS_S = 1.0
#: The moves of this many seconds are shown.
_SINCE_S = 3_600


async def contract_list(page: Page) -> dict[str, Any]:
    """The registered contracts, with how many jobs live under each."""
    found = await page.get("/api/v1/contracts")
    stats = await page.try_get("/api/v1/stats", seconds=_COUNTS_S, since_seconds=60)
    live: Counter[str] = Counter()
    for level in [] if stats is None else stats["live"]:
        live[level["contract"]] += level["jobs"]
    return {"contracts": found["contracts"], "live": None if stats is None else live}


async def contract(page: Page) -> dict[str, Any]:
    """One contract: its drawing, its states and paths with their counts, and the result of its verification."""
    path = f"/api/v1/contracts/{page.name}"
    shown = await page.get(path)
    activity = await page.try_get(f"{path}/activity", seconds=_COUNTS_S, since_seconds=_SINCE_S)
    live = None if activity is None else {one["state"]: one["jobs"] for one in activity["live"]}
    moves = [] if activity is None else activity["moves"]
    return {
        "title": f"Contract {shown['name']}", "contract": shown, "declaration": shown["declaration"], "live": live,
        "draw": partial(_draw, shown, live, moves),
        "paths": [_path(one, moves) for one in shown["declaration"]["paths"]],
        "made": sum(move["moves"] for move in moves if move["from_state"] is None),
        "verification": await page.try_get(f"{path}/verification"),
    }  # fmt: skip


def _draw(
    contract: Mapping[str, Any],
    live: Mapping[str, int] | None,
    moves: Sequence[Mapping[str, Any]],
    search_url: Callable[..., str],
) -> Markup:
    """The drawing, whose states and edges lead to their jobs."""
    edges: Counter[tuple[str, str]] = Counter()
    for move in moves:
        edges[move["from_state"], move["to_state"]] += move["moves"]
    counts = Counts(
        {} if live is None else {state: live.get(state, 0) for state in contract["declaration"]["states"]}, edges,
        "in the last hour", lambda state: search_url(contract=contract["name"], state=state),
        lambda pair: search_url(contract=contract["name"], state=pair[1]),
    )  # fmt: skip
    return inline_svg(_drawing(json.dumps(contract["declaration"])).to_svg(counts))


def inline_svg(svg: str) -> Markup:
    """A drawing of ours as a part of a page. The page's style sheet has its style: the policy forbids it inside."""
    head, _, rest = svg.partition("<style>")
    return Markup(head + rest.partition("</style>")[2])


@lru_cache(maxsize=50)
def _drawing(declared: str) -> CountedDrawing:
    """The layout takes some hundredths of a second, the numbers in it almost nothing."""
    return CountedDrawing(from_description(json.loads(declared)))


def _path(path: Mapping[str, Any], moves: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A path with how many jobs took it: moves along its first hop."""
    first = path["hops"][0]["state"]
    taken = [
        move["moves"]
        for move in moves
        if (move["trigger"], move["to_state"]) == (path["trigger"], first) and move["from_state"] in path["sources"]
    ]
    return {**path, "moves": sum(taken)}
