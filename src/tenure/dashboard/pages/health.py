"""Health: what doctor finds."""

from __future__ import annotations

from typing import Any

from tenure.dashboard.page import Page

#: An examination costs more than a look at jobs: many who open the page share one.
_EXAMINATION_S = 10.0


async def health(page: Page) -> dict[str, Any]:
    """The findings of an examination, the worst first."""
    return dict(await page.get("/api/v1/doctor", seconds=_EXAMINATION_S))
