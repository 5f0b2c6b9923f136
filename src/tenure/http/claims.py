"""Routes for workers that look for work: claims, what is due, wake-ups, and what their tasks want."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from fastapi import Query, Request

from tenure import intake
from tenure.errors import TenureError
from tenure.http import shown
from tenure.http.asked import caller, desk, must_have_no_key, needs, routes
from tenure.http.lines import Which
from tenure.http.models import claims as models
from tenure.http.models.fields import LONGEST_WAIT_S
from tenure.http.models.refusal import responses
from tenure.http.shown import Json, Quick
from tenure.job_type import JobType
from tenure.local import Local
from tenure.postgres.claiming import Claimer
from tenure.wakeup import ABOUT_A_JOB

router = routes("claims")
_WORK = needs("work")


@router.post("/api/v1/claims", responses=responses(models.ClaimsWon, refuses=(409,)), openapi_extra=_WORK)
async def claim(request: Request, body: models.Claim) -> Json:
    """Take due jobs under a lease. `wait_seconds`: wait for some; `claim_key`: ask again after a lost answer."""
    must_have_no_key(request, "give a claim_key")
    at, who = desk(request), caller(request)
    contract = await at.store.contract(body.contract)
    _names("type", body.types or ())
    types = None if body.types is None else tuple(body.types)
    which = Which(body.contract, tuple(body.queues), types, who.tenant)
    claimer = Claimer(body.worker_id, body.limit, body.claim_key)

    async def is_gone() -> bool:
        await request.app.state.keyring.caller(request)  # whose key was revoked meanwhile is refused, and gets nothing
        return await request.is_disconnected()

    jobs = await at.claim(which, claimer, body.wait_seconds, is_gone)
    won = [shown.claim(job, contract) for job in jobs]
    if not body.record or not jobs:
        return Quick({"claims": won})
    rows: Mapping[int, Any] = {}
    with contextlib.suppress(TenureError):  # they are won: better without a row than lost with it
        rows = await at.store.records(body.contract, [job.id for job in jobs])
    for job, one in zip(jobs, won, strict=True):
        one["job"]["record"] = rows.get(job.id)
    return Json({"claims": won})


@router.post("/api/v1/due", responses=responses(models.DueContracts), openapi_extra=_WORK)
async def due(request: Request, body: models.Due) -> Json:
    """Which of these contracts have something to claim from these queues now; a hint, which locks nothing."""
    _places(body)
    at = desk(request)
    found = await at.store.due(body.contracts, body.queues, tenant=caller(request).tenant)
    at.bell.found(found)
    return Json({"contracts": found})


@router.post("/api/v1/strangers", responses=responses(models.StrangersFound), openapi_extra=_WORK)
async def strangers(request: Request, body: models.Strangers) -> Json:
    """Due jobs of types that this worker does not know; those that nobody knew for an hour are ended."""
    caller(request).must_be_unbound()
    _places(body)
    _names("type", body.known)
    intake.name("worker", body.worker_id)
    local = Local(desk(request).store)
    found = await local.strangers(body.contracts, body.queues, body.known, worker=body.worker_id)
    return Json({"jobs": [{"id": str(job_id), "type": kind} for job_id, kind in found]})


def _places(body: models.Due) -> None:
    _names("contract", body.contracts)
    _names("queue", body.queues)


def _names(kind: str, given: Iterable[str]) -> None:
    """Refuse names that cannot be stored, and so name nothing."""
    for name in given:
        intake.name(kind, name)


@router.get("/api/v1/wakeups", responses=responses(models.WakeupsHeard, body=False), openapi_extra=_WORK)
async def wakeups(
    request: Request,
    after: Annotated[str | None, Query(max_length=64, description="The cursor of the last answer.")] = None,
    wait_seconds: Annotated[
        float,
        Query(ge=0, le=LONGEST_WAIT_S, allow_inf_nan=False, description="Seconds to wait for something; default 0."),
    ] = 0,
) -> Json:
    """What was heard since the cursor: where there may be jobs, and which jobs something was done to."""
    at = desk(request)
    heard = await at.bell.since(after, wait_seconds)
    await request.app.state.keyring.caller(request)  # whose key was revoked meanwhile hears nothing
    cursor = at.bell.cursor
    told = dict.fromkeys(word for one in heard if (word := _may_hear(request, *one)))
    return Json({"wakeups": [{"contract": contract, "queue": queue} for contract, queue in told], "cursor": cursor})


def _may_hear(request: Request, contract: str, queue: str) -> tuple[str, str] | None:
    """Who is bound to a tenant hears of its own jobs, as far as they are known here, and of no queue's name."""
    who = caller(request)
    if who.tenant is None:
        return contract, queue
    if contract != ABOUT_A_JOB:
        return contract, ""
    number = int(queue) if queue.isdecimal() and len(queue) < 20 else intake.MAX_ID
    kind = desk(request).knows(number)
    return (contract, queue) if kind is not None and kind.tenant == who.tenant else None


@router.put("/api/v1/types", responses=responses(models.Declared), openapi_extra=_WORK)
async def declare(request: Request, body: models.DeclareTypes) -> Json:
    """Declare what tasks want otherwise than their contracts; for all tenants, so a key must be bound to none."""
    caller(request).must_be_unbound()
    types = [JobType(**one.model_dump()) for one in body.types]
    if types:
        await desk(request).store.types.declare(types)
    return Json({"declared": len(types)})
