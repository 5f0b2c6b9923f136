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


async def overview(page: Page) -> dict[str, Any]:
    """Queues with their oldest waiting job, live workers, open dead letters, and the newest jobs."""
    queues = await page.try_get("/api/v1/queues")
    workers = await page.try_get("/api/v1/workers")
    letters = await page.try_get("/api/v1/dlq/items", status="open", limit=8)
    groups = await page.try_get("/api/v1/dlq/groups", limit=5)
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
        "groups": [] if groups is None else groups["groups"],
        "letters": None if letters is None else letters,
        "alarms": [] if alarms is None else [one for one in alarms["alarms"] if one["muted_by"] is None],
        "jobs": jobs["jobs"],
        "throughput": None if stats is None else _throughput(stats["slices"]),
        "durations": [] if stats is None else sorted(stats["types"], key=lambda one: -one["claims"])[:_MOST_TYPES],
        "operations": [] if operations is None else operations["operations"],
        "switches": [] if switches is None else switches["switches"],
    }


def _throughput(slices: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """For each minute of the last hour: when it began, and how many jobs were made, claimed and ended."""
    names = ("enqueued", "claimed", "ended")
    begins = [int(datetime.fromisoformat(one["start"]).timestamp()) for one in slices]
    if not begins:
        return {"times": []}
    # The database's clock has the slices, this machine's only says where the empty minutes end.
    newest = max(*begins, int(time.time()) // 60 * 60)
    minutes = {at: [0, 0, 0] for at in range(newest - 3_600, newest + 1, 60)}
    for at, one in zip(begins, slices, strict=True):
        minute = minutes.setdefault(at, [0, 0, 0])
        for place, name in enumerate(names):
            minute[place] += one[name]
    times = sorted(minutes)
    return {"times": times, **{name: [minutes[at][place] for at in times] for place, name in enumerate(names)}}
