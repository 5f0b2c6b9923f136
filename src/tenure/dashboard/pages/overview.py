"""The overview: what runs, what waits, what failed lately."""

from __future__ import annotations

from typing import Any

from tenure.dashboard.page import Page


async def overview(page: Page) -> dict[str, Any]:
    """Queues with their oldest waiting job, live workers, open dead letters, and the newest jobs."""
    queues = await page.try_get("/api/v1/queues")
    workers = await page.try_get("/api/v1/workers")
    letters = await page.try_get("/api/v1/dlq/items", status="open", limit=8)
    groups = await page.try_get("/api/v1/dlq/groups", limit=5)
    alarms = await page.try_get("/api/v1/alarms", limit=10)
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
    }
