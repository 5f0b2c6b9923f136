"""Routes for who holds a job: everything that a holder says, fenced by (job, claims, token)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fastapi import Request

from tenure.errors import BadInput
from tenure.http import shown
from tenure.http.asked import JobId, caller, desk, job_number, job_numbers, must_have_no_key, needs, repeat_key, routes
from tenure.http.desk import Said
from tenure.http.models import holding as models
from tenure.http.models.moves import Move, Note
from tenure.http.models.refusal import responses
from tenure.http.shown import Json, Quick
from tenure.job import Held

router = routes("holding")
_WORK = needs("work")
#: One of many: who holds which job.
P = TypeVar("P", models.Finish, models.Start, models.Beat)
#: What a finish may carry, and what its verb has a use for.
_FACTS = frozenset({"result", "error", "seconds", "reason"})
_REASON = frozenset({"reason"})
_USES = {
    "succeed": frozenset({"result"}), "fail": frozenset({"error"}), "snooze": frozenset({"seconds"}),
    "hand-back": frozenset({"seconds", "reason"}),
}  # fmt: skip
_MOVE, _NOTE = (responses(model, refuses=(404, 409)) for model in (Move, Note))


async def _held(request: Request, job_id: str, body: models.Proof) -> Held:
    return await desk(request).held(job_number(job_id), body.claims, body.lease_token, caller(request))


async def _say(request: Request, job_id: str, verb: str, body: models.KeyedProof, **facts: Any) -> Json:
    """Say a word of a job that is held; what became of it."""
    key = repeat_key(request, body.idempotency_key)
    said, at = Said(await _held(request, job_id, body), key, **facts), desk(request)
    return Quick(shown.answer(await at.patiently(lambda: at.say(verb, said)), said.held.id))


@router.post(
    "/api/v1/jobs/{job_id}/start", responses=responses(models.StartAnswer, refuses=(404, 409)), openapi_extra=_WORK
)
async def start(request: Request, job_id: JobId, body: models.KeyedProof) -> Json:
    """Say that the handler begins; nothing under a contract without that step."""
    return await _say(request, job_id, "start", body)


@router.post("/api/v1/jobs/{job_id}/heartbeat", responses=_NOTE, openapi_extra=_WORK)
async def heartbeat(request: Request, job_id: JobId, body: models.KeyedProof) -> Json:
    """Say that the work goes on. The answer says until when the job is held, and whether to stop."""
    key = repeat_key(request, body.idempotency_key)
    if key is None:
        return await _say(request, job_id, "heartbeat", body)
    held, at = await _held(request, job_id, body), desk(request)
    return Json(shown.answer(await at.patiently(lambda: at.store.heartbeat(held, key=key))))


@router.post("/api/v1/jobs/{job_id}/progress", responses=_NOTE, openapi_extra=_WORK)
async def progress(request: Request, job_id: JobId, body: models.Saved) -> Json:
    """Show how far the work is."""
    return Json(shown.answer(await desk(request).store.progress(await _held(request, job_id, body), body.value)))


@router.post("/api/v1/jobs/{job_id}/checkpoint", responses=_NOTE, openapi_extra=_WORK)
async def checkpoint(request: Request, job_id: JobId, body: models.Saved) -> Json:
    """Save what the next attempt shall begin with."""
    return Json(shown.answer(await desk(request).store.checkpoint(await _held(request, job_id, body), body.value)))


@router.post(
    "/api/v1/jobs/{job_id}/effect", responses=responses(models.EffectOnRecord, refuses=(404, 409)), openapi_extra=_WORK
)
async def effect(request: Request, job_id: JobId, body: models.Effect) -> Json:
    """Record that a node has had its effect: once per job, over all attempts."""
    held = await _held(request, job_id, body)
    had = await desk(request).store.effect(held, body.node, body.result, compensable=body.compensable)
    return Json({"recorded": had.recorded, "result": body.result if had.recorded else shown.decoded(had.result_json)})


@router.post(
    "/api/v1/jobs/{job_id}/undone", responses=responses(models.EffectUndone, refuses=(404, 409)), openapi_extra=_WORK
)
async def undone(request: Request, job_id: JobId, body: models.Undone) -> Json:
    """Record that a node's effect is undone."""
    await desk(request).store.undone(await _held(request, job_id, body), body.node)
    return Json({"id": job_id})


@router.get(
    "/api/v1/jobs/{job_id}/effects",
    responses=responses(models.EffectsHad, refuses=(404,), body=False),
    openapi_extra=_WORK,
)
async def effects(request: Request, job_id: JobId) -> Json:
    """The nodes of a job that have had their effect, newest first, with what came of each."""
    number, at = job_number(job_id), desk(request)
    await at.kind(number, caller(request))
    return Json({"effects": await at.store.effects(number)})


@router.post("/api/v1/jobs/{job_id}/succeed", responses=_MOVE, openapi_extra=_WORK)
async def succeed(request: Request, job_id: JobId, body: models.Succeed) -> Json:
    """End a job well, with its result."""
    return await _say(request, job_id, "succeed", body, result=body.result)


@router.post("/api/v1/jobs/{job_id}/fail", responses=_MOVE, openapi_extra=_WORK)
async def fail(request: Request, job_id: JobId, body: models.Fail) -> Json:
    """Report a failure: facts only. The answer says whether and when it runs again, or which effects to undo first."""
    return await _say(request, job_id, "fail", body, failure=body.error.failure())


@router.post("/api/v1/jobs/{job_id}/snooze", responses=_MOVE, openapi_extra=_WORK)
async def snooze(request: Request, job_id: JobId, body: models.Snooze) -> Json:
    """Put a job off, at no cost to its budget."""
    return await _say(request, job_id, "snooze", body, delay_ms=round(body.seconds * 1_000))


@router.post(
    "/api/v1/jobs/{job_id}/hand-back",
    responses=responses(models.HandBackAnswer, refuses=(404, 409)),
    openapi_extra=_WORK,
)
async def hand_back(request: Request, job_id: JobId, body: models.HandBack) -> Json:
    """Give a job back unfinished, its contract's way."""
    return await _say(request, job_id, "hand-back", body, delay_ms=round(body.seconds * 1_000), reason=body.reason)


@router.post("/api/v1/jobs/{job_id}/cancelled", responses=_MOVE, openapi_extra=_WORK)
async def cancelled(request: Request, job_id: JobId, body: models.Cancelled) -> Json:
    """End a job as cancelled, by its holder: because it was asked to stop, or chose to."""
    return await _say(request, job_id, "cancelled", body, reason=body.reason)


@router.post("/api/v1/jobs/{job_id}/compensated", responses=_MOVE, openapi_extra=_WORK)
async def compensated(request: Request, job_id: JobId, body: models.KeyedProof) -> Json:
    """The effects that a failure named are undone: the job ends as it failed."""
    key = repeat_key(request, body.idempotency_key)
    return Json(shown.answer(await desk(request).store.compensated(await _held(request, job_id, body), key=key)))


@router.post("/api/v1/jobs/{job_id}/compensation-failed", responses=_MOVE, openapi_extra=_WORK)
async def compensation_failed(request: Request, job_id: JobId, body: models.Fail) -> Json:
    """The effects could not be undone: the job is set aside for a person to look at."""
    key, held = repeat_key(request, body.idempotency_key), await _held(request, job_id, body)
    return Json(shown.answer(await desk(request).store.compensation_failed(held, body.error.failure(), key=key)))


@router.post("/api/v1/finishes", responses=responses(models.FinishAnswers, refuses=(409,)), openapi_extra=_WORK)
async def finishes(request: Request, body: models.FinishMany) -> Json:
    """Last words of many jobs; each is answered or refused by itself, in the order asked."""
    at = desk(request)
    became = await _each(
        request, body.finishes, lambda one, held: at.say(one.verb, Said(held, one.idempotency_key, **_facts(one)))
    )
    return Quick({"answers": [shown.answer(one) for one in became]})


async def _each(request: Request, asked: Sequence[P], say: Callable[[P, Held], asyncio.Future[Any]]) -> list[Any]:
    """Say something of each of many jobs; what became of each."""
    must_have_no_key(request, "in finishes and starts give each its idempotency_key; heartbeats need none")
    at, who = desk(request), caller(request)
    kinds = await at.kinds(job_numbers(one.id for one in asked))

    def begin(one: P) -> asyncio.Future[Any]:
        number = job_number(one.id)
        return say(one, at.proof(kinds[number], number, one.claims, one.lease_token, who))

    return await at.each(asked, begin)


def _facts(one: models.Finish) -> dict[str, Any]:
    """The facts of a finish; refuses what its verb has no use for."""
    for name in _FACTS - _USES.get(one.verb, _REASON):
        if getattr(one, name) is not None:
            raise BadInput(f"a finish of the verb {one.verb} takes no {name}. Next: leave it out")
    if one.verb == "snooze" and one.seconds is None:
        raise BadInput("a finish of the verb snooze says for how many seconds. Next: give seconds")
    return {
        "result": one.result,
        "failure": (one.error or models.FailureFacts()).failure() if one.verb == "fail" else None,
        "delay_ms": round((one.seconds or 0) * 1_000),
        "reason": one.reason,
    }


@router.post("/api/v1/starts", responses=responses(models.StartAnswers, refuses=(409,)), openapi_extra=_WORK)
async def starts(request: Request, body: models.StartMany) -> Json:
    """Say of many jobs that their handlers begin."""
    at = desk(request)
    became = await _each(request, body.starts, lambda one, held: at.say("start", Said(held, one.idempotency_key)))
    said = zip(became, body.starts, strict=True)
    return Quick({"answers": [shown.answer(one, int(asked.id)) for one, asked in said]})


@router.post("/api/v1/heartbeats", responses=responses(models.HeartbeatAnswers, refuses=(409,)), openapi_extra=_WORK)
async def heartbeats(request: Request, body: models.HeartbeatMany) -> Json:
    """Say of many jobs that the work goes on."""
    at = desk(request)
    became = await _each(request, body.heartbeats, lambda _, held: at.say("heartbeat", Said(held)))
    return Quick({"answers": [shown.answer(one) for one in became]})
