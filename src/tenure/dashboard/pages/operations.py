"""Operations on many jobs or dead letters: the list, and one with its preview and its progress."""

from __future__ import annotations

from typing import Any

from tenure.dashboard.actions import ACTIONS
from tenure.dashboard.page import Page
from tenure.jobs.operation_summary import top

#: How many items are shown as examples, and for how many seconds what is shown of each is shared.
_EXAMPLES = 10
_EXAMPLE_S = 10.0
#: What only a person with the scope approve may do, to one dead letter or to many.
_DECISIONS = ("discard", "approve")


async def operation_list(page: Page) -> dict[str, Any]:
    """A page of operations, the newest first."""
    return dict(await page.get("/api/v1/operations", cursor=page.query.get("cursor"), limit=50))


async def operation(page: Page) -> dict[str, Any]:
    """One operation: what is done to how many, examples of them, and what was left as it is."""
    path = f"/api/v1/operations/{page.name}"
    shown = await page.get(path)
    items = await page.get(f"{path}/items", limit=_EXAMPLES)
    skipped = await page.get(f"{path}/items", state="skipped", limit=_EXAMPLES) if shown["skipped"] else {"items": []}
    of_letters = shown["kind"] == "dead_letters"
    each = "/api/v1/dlq/items" if of_letters else "/api/v1/jobs"
    examples = [
        {**item, "shown": await page.try_get(f"{each}/{item['item_id']}", seconds=_EXAMPLE_S)}
        for item in items["items"]
    ]
    decides = shown["verb"] in _DECISIONS
    needed = ACTIONS["approve-letter" if decides else "requeue-letter"].route
    return {
        "title": f"Operation {shown['id']}", "operation": shown, "of_letters": of_letters, "examples": examples,
        "skipped": skipped["items"], "decides": decides, "top": top,
        "may_change": page.application.has_scopes(page.caller, *needed),
    }  # fmt: skip
