"""Flows and datasets."""

from __future__ import annotations

from typing import Any

from tenure.dashboard.page import Page
from tenure.dashboard.pages.contracts import inline_svg

#: A picture of a flow is drawn anew at most this often.
_PICTURE_S = 2.0


async def flow_list(page: Page) -> dict[str, Any]:
    """A page of flows, the newest first."""
    state, name = page.query.get("state"), page.query.get("name")
    found = await page.get("/api/v1/flows", state=state, name=name, cursor=page.query.get("cursor"), limit=50)
    return {**found, "state": state or "", "name": name or ""}


async def flow(page: Page) -> dict[str, Any]:
    """One flow: its picture and its nodes."""
    path = f"/api/v1/flows/{page.name}"
    shown = await page.get(path, cursor=page.query.get("cursor"), limit=200)
    picture = await page.get(f"{path}/picture", seconds=_PICTURE_S)
    return {"title": f"Flow {shown['name']}", "flow": shown, "drawing": inline_svg(picture.decode())}


async def dataset_list(page: Page) -> dict[str, Any]:
    """The datasets, and the last cutovers and rollbacks."""
    found = await page.get("/api/v1/datasets", cursor=page.query.get("cursor"), limit=100)
    switches = await page.get("/api/v1/dataset-switches", limit=20)
    return {**found, "switches": switches["switches"]}


async def dataset(page: Page) -> dict[str, Any]:
    """One dataset: its generations, and the tasks that run for its events."""
    tenant = page.query.get("tenant_id")
    shown = await page.get(f"/api/v1/datasets/{page.name}", tenant_id=tenant)
    switches = await page.get("/api/v1/dataset-switches", dataset=page.name, tenant_id=tenant, limit=20)
    return {"title": f"Dataset {shown['name']}", "dataset": shown, "switches": switches["switches"]}
