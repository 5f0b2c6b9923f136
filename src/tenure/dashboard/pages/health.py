"""Health: what doctor finds, and the alarms."""

from __future__ import annotations

from typing import Any

from tenure.dashboard.page import Page

#: An examination costs more than a look at jobs: many who open the page share one.
_EXAMINATION_S = 10.0


async def alarm_list(page: Page) -> dict[str, Any]:
    """The alarms that hold, and lately those that are over."""
    found = await page.get("/api/v1/alarms", history="true", limit=100)
    alarms = found["alarms"]
    return {
        "firing": [one for one in alarms if one["cleared_at"] is None],
        "over": [one for one in alarms if one["cleared_at"] is not None],
    }


async def health(page: Page) -> dict[str, Any]:
    """The findings of an examination, the worst first."""
    return dict(await page.get("/api/v1/doctor", seconds=_EXAMINATION_S))
