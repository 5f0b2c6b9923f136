"""Routes about the dispatcher itself: its health, and its OpenAPI."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from pydantic import BaseModel, RootModel

from tenure.errors import CannotConnect
from tenure.http.application import ApiRequest
from tenure.http.models.errors import Refusal
from tenure.http.models.fields import described
from tenure.http.openapi import openapi_document
from tenure.http.response import JsonResponse


class Healthy(BaseModel):
    """The dispatcher is healthy."""

    status: Literal["ok"] = described("It is healthy.")


class Stopping(BaseModel):
    """The dispatcher is stopping."""

    status: Literal["stopping"] = described("It is stopping.")


class NotReady(RootModel[Stopping | Refusal]):
    """The dispatcher is stopping, or its database is unavailable."""


#: A readiness probe waits this many seconds for the database.
_READY_S = 1.0


async def healthz(request: ApiRequest) -> dict[str, Any]:
    """Whether the process answers."""
    return {"status": "ok"}


async def readyz(request: ApiRequest) -> dict[str, Any] | JsonResponse:
    """Whether the dispatcher can serve: its database answers, and it is not stopping."""
    if request.calls.wakeups.is_closed:
        return JsonResponse({"status": "stopping"}, status_code=503)
    try:
        async with asyncio.timeout(_READY_S):
            await request.calls.store.contracts()
    except TimeoutError:
        raise CannotConnect(f"the database did not answer within {_READY_S:g} s. Next: try again") from None
    return {"status": "ok"}


async def openapi(request: ApiRequest) -> dict[str, Any]:
    """The OpenAPI of this dispatcher."""
    return await asyncio.to_thread(openapi_document, request.application.routes)  # the first one takes a while
