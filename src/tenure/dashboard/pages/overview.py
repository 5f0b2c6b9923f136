"""The overview: what runs, what waits, what failed lately."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from tenure.dashboard.page import Page

#: Statistics cost more than a list: open pages share them for this many seconds.
_STATS_S = 2.0
_MOST_TYPES = 10
#: The open dead letters of these causes are counted, those with the most first.
_MOST_CAUSES = 50
#: The figures of a minute: numbers, and durations in seconds.
_COUNTED = ("enqueued", "claimed", "ended", "failures")
_MEASURED = ("wait_p50_s", "wait_p95_s", "run_p50_s", "run_p95_s")


async def overview(page: Page) -> dict[str, Any]:
    """Queues with their oldest waiting job, live workers, charts of all types or of one, and what changed lately."""
    contract, type_ = page.query.get("contract"), page.query.get("type")
    queues = await page.try_get("/api/v1/queues")
    workers = await page.try_get("/api/v1/workers")
    letters = await page.try_get("/api/v1/dlq/items", status="open", limit=8)
    groups = await page.try_get("/api/v1/dlq/groups", limit=_MOST_CAUSES)
    alarms = await page.try_get("/api/v1/alarms", limit=10)
    stats = await page.try_get("/api/v1/stats", seconds=_STATS_S)
    operations = await page.try_get("/api/v1/operations", limit=5)
    switches = await page.try_get("/api/v1/dataset-switches", limit=5)
    jobs = await page.get("/api/v1/jobs", limit=12)
    due = [] if queues is None else [queue for queue in queues["queues"] if queue["oldest"] is not None]
    return {
        "queues": None if queues is None else queues["queues"],
        "oldest": min(due, key=lambda queue: queue["oldest"], default=None),
        "workers": None if workers is None else workers["workers"],
        "groups": [] if groups is None else groups["groups"][:5],
        "open_letters": None if groups is None else sum(one["open"] for one in groups["groups"]),
        "more_letters": groups is not None and (groups["uncounted"] > 0 or len(groups["groups"]) == _MOST_CAUSES),
        "letters": None if letters is None else letters,
        "alarms": [] if alarms is None else [one for one in alarms["alarms"] if one["muted_by"] is None],
        "jobs": jobs["jobs"],
        "charts": None if stats is None else _charts(_chosen(stats, contract, type_)),
        "chosen": type_ and {"contract": contract, "type": type_},
        "types": [] if stats is None else sorted(stats["types"], key=lambda one: -one["claims"])[:_MOST_TYPES],
        "more_types": 0 if stats is None else max(0, len(stats["types"]) - _MOST_TYPES),
        "failures": None if stats is None else sum(one["failures"] for one in stats["totals"]),
        "claims": None if stats is None else sum(one["claimed"] for one in stats["totals"]),
        "operations": [] if operations is None else operations["operations"],
        "switches": [] if switches is None else switches["switches"],
    }


def _chosen(stats: Mapping[str, Any], contract: str | None, type_: str | None) -> list[Mapping[str, Any]]:
    """The minutes of all types, or of the chosen one."""
    if type_ is None:
        return list(stats["totals"])
    return [one for one in stats["slices"] if (one["contract"], one["type"]) == (contract, type_)]


def _charts(slices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """For each minute of the last hour, when it began and what happened in it; None where nothing was measured."""
    begins = [int(datetime.fromisoformat(one["start"]).timestamp()) for one in slices]
    if not begins:
        return {"times": []}
    # The database's clock has the slices, this machine's only says where the empty minutes end.
    newest = max(*begins, int(time.time()) // 60 * 60)
    times = list(range(newest - 3_600, newest + 1, 60))
    by_time = dict(zip(begins, slices, strict=True))
    found: dict[str, Any] = {"times": times}
    for name in _COUNTED:
        found[name] = [by_time[at][name] if at in by_time else 0 for at in times]
    for name in _MEASURED:
        found[name] = [by_time[at][name] if at in by_time else None for at in times]
    return found
