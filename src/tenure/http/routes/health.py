"""Routes about the dispatcher and its database: health, findings, and the OpenAPI."""

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
from tenure.postgres.doctor.examination import summarize


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


class Finding(BaseModel):
    """One thing that is wrong with the database, its server or its workers."""

    code: str = described("What is wrong, as in the reference.", examples=["xmin-pinned"])
    severity: Literal["critical", "warning", "note"] = described("How bad it is.")
    summary: str = described("What is the matter, for people.", examples=["no worker serves queue mail"])
    next: str = described("The next command, or what to change.", examples=["tenure worker APP --queues mail"])
    details: dict[str, Any] = described("The same for programs; the fields depend on the code.", examples=[{"pid": 42}])


class FindingCounts(BaseModel):
    """How many findings there are of each severity."""

    critical: int = described("Critical ones.")
    warning: int = described("Warnings.")
    note: int = described("Notes.")


class Examination(BaseModel):
    """The findings of an examination."""

    counts: FindingCounts = described("How many there are of each severity.")
    findings: list[Finding] = described("The findings, the worst first.")


async def doctor(request: ApiRequest) -> dict[str, Any]:
    """Examine the database, its server and its workers; the key must not be bound to a tenant."""
    request.caller.require_all_tenants()
    findings = await request.calls.store.doctor.examine(direct_url=request.application.direct_url)
    return {"counts": summarize(findings), "findings": [one.to_json() for one in findings]}
