"""Queues, workers and schedules."""

from __future__ import annotations

from typing import Any

from tenure.dashboard.page import Page


async def queue_list(page: Page) -> dict[str, Any]:
    """The queues that have live jobs or are paused."""
    return {"queues": (await page.get("/api/v1/queues"))["queues"]}


async def worker_list(page: Page) -> dict[str, Any]:
    """The live workers, other holders of jobs, and workers that went in the last hour."""
    found = await page.get("/api/v1/workers")
    return {"workers": found["workers"], "gone": found["gone"]}


async def schedule_list(page: Page) -> dict[str, Any]:
    """The schedules of all applications."""
    return {"schedules": (await page.get("/api/v1/schedules"))["schedules"]}


async def schedule(page: Page) -> dict[str, Any]:
    """One schedule: its last and its next fires."""
    application = page.query.get("application")
    path = f"/api/v1/schedules/{page.name}"
    shown = await page.get(path, application=application)
    following = await page.try_get(f"{path}/next", application=application, count=5)
    times = [] if following is None else following["next"]
    return {"title": f"Schedule {shown['name']}", "schedule": shown, "next_times": times}
