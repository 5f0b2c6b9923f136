"""Dead letters: the list, and one with what was decided about it."""

from __future__ import annotations

from typing import Any

from tenure.dashboard.page import Page
from tenure.errors import BadInput
from tenure.jobs.search import LETTER_SUGGESTIONS


async def letter_list(page: Page) -> dict[str, Any]:
    """A page of dead letters that match the search, and the causes of the open ones."""
    q, cursor = page.query.get("q", "status:open"), page.query.get("cursor")
    error, found = None, dict[str, Any](items=[], next=None, stopped=False)
    try:
        found = await page.get("/api/v1/dlq/items", q=q, cursor=cursor, limit=50)
    except BadInput as refused:
        error = str(refused)
    groups = await page.get("/api/v1/dlq/groups", limit=20)
    return {
        "letters": found["items"], "next": found["next"], "stopped": found["stopped"], "q": q, "cursor": cursor,
        "error": error, "groups": groups["groups"], "uncounted": groups["uncounted"], "suggestions": LETTER_SUGGESTIONS,
    }  # fmt: skip


async def group(page: Page) -> dict[str, Any]:
    """The dead letters of one cause."""
    shown = await page.get(f"/api/v1/dlq/groups/{page.name}")
    found = await page.get("/api/v1/dlq/items", q=f"status:open group:{shown['fingerprint']}", limit=20)
    return {"title": f"Cause {shown['fingerprint']}", "group": shown, "letters": found["items"], "next": found["next"]}


async def letter(page: Page) -> dict[str, Any]:
    """One dead letter."""
    shown = await page.get(f"/api/v1/dlq/items/{page.name}")
    return {"title": f"Dead letter {shown['dlq_id']}", "letter": shown}
