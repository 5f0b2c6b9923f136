"""Routes for operators: what people do to jobs, and what they look at."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import Path, Request

from tenure.http import shown
from tenure.http.asked import JobId, caller, desk, job_number, needs, repeat_key, routes
from tenure.http.models import operators as models
from tenure.http.models.moves import Move
from tenure.http.models.refusal import responses
from tenure.http.shown import Json
from tenure.intake import LENGTHS

router = routes("operators")
_OPERATE = needs("operate")


async def _named(request: Request, job_id: str) -> int:
    """The job that is meant; refuses another tenant's."""
    number = job_number(job_id)
    await desk(request).kind(number, caller(request))
    return number


@router.post(
    "/api/v1/jobs/{job_id}/cancel", responses=responses(models.CancelAnswer, refuses=(404, 409)), openapi_extra=_OPERATE
)
async def cancel(request: Request, job_id: JobId, body: models.Cancel | None = None) -> Json:
    """Cancel a job: hard at once; soft at once too unless it has started, then its holder is asked to stop."""
    asked = body or models.Cancel()
    key, number = repeat_key(request, asked.idempotency_key), await _named(request, job_id)
    store, actor = desk(request).store, caller(request).actor
    return Json(shown.answer(await store.cancel(number, mode=asked.mode, reason=asked.reason, actor=actor, key=key)))


@router.post(
    "/api/v1/jobs/{job_id}/transition",
    responses=responses(models.TransitionAnswer, refuses=(404, 409)),
    openapi_extra=_OPERATE,
)
async def transition(request: Request, job_id: JobId, body: models.Transition) -> Json:
    """Make the hop to a state by its trigger's own path and guards; refused where the contract has none."""
    key, number = repeat_key(request, body.idempotency_key), await _named(request, job_id)
    store, actor = desk(request).store, caller(request).actor
    return Json(shown.answer(await store.transition(number, body.to, reason=body.reason, actor=actor, key=key)))


@router.post("/api/v1/jobs/{job_id}/dead-letter", responses=responses(Move, refuses=(404, 409)), openapi_extra=_OPERATE)
async def dead_letter(request: Request, job_id: JobId, body: models.DeadLetter) -> Json:
    """Set a job aside, with its reason."""
    key, number = repeat_key(request, body.idempotency_key), await _named(request, job_id)
    moved = await desk(request).store.dead_letter(
        number,
        reason_code=body.reason_code,
        stage=body.stage,
        message=body.message,
        actor=caller(request).actor,
        key=key,
    )
    return Json(shown.answer(moved))


@router.post(
    "/api/v1/jobs/{job_id}/requeue",
    responses=responses(models.JobRequeued, refuses=(404, 409)),
    openapi_extra=_OPERATE,
)
async def requeue(request: Request, job_id: JobId, body: models.Requeue | None = None) -> Json:
    """Run a finished job again, as a new job that points back to it."""
    key = repeat_key(request, body.idempotency_key if body else None)
    number = await _named(request, job_id)
    made = await desk(request).store.requeue(number, actor=caller(request).actor, key=key)
    return Json({"id": str(number), "requeued_as": str(made)})


@router.get("/api/v1/contracts", responses=responses(models.ContractList, body=False), openapi_extra=needs())
async def contracts(request: Request) -> Json:
    """The registered contracts, each in its newest version, with this dispatcher's numbers."""
    store = desk(request).store
    found = [await store.contract(name) for name in dict.fromkeys(await store.contracts())]
    return Json({"contracts": [shown.declared(contract) for contract in found]})


@router.get("/api/v1/contracts/{name}", responses=responses(models.Contract, body=False), openapi_extra=needs())
async def contract(
    request: Request,
    name: Annotated[
        str, Path(max_length=LENGTHS["contract"], description="The contract's name.", examples=["standard"])
    ],
) -> Json:
    """One contract, as it is declared."""
    return Json(shown.declared(await desk(request).store.contract(name)))


@router.get("/api/v1/queues", responses=responses(models.QueueList, body=False), openapi_extra=_OPERATE)
async def queues(request: Request) -> Json:
    """The queues that have live jobs or are paused: what stands in each, over all tenants."""
    caller(request).must_be_unbound()
    found = await desk(request).store.queues.list()
    return Json({"queues": [shown.queue(queue) for queue in found]})


@router.post("/api/v1/queues/pause", responses=responses(models.QueueChanged), openapi_extra=_OPERATE)
async def pause(request: Request, body: models.PauseQueue) -> Json:
    """Let nobody claim from a queue; what is held goes on, and who names a job by its id still gets it."""
    who = caller(request)
    who.must_be_unbound()
    paused, is_new = await desk(request).store.queues.pause(body.queue, actor=who.actor, reason=body.reason)
    return Json({"queue": body.queue, "changed": is_new, "paused": asdict(paused)})


@router.post("/api/v1/queues/resume", responses=responses(models.QueueChanged), openapi_extra=_OPERATE)
async def resume(request: Request, body: models.ResumeQueue) -> Json:
    """Let a queue be claimed from again."""
    who = caller(request)
    who.must_be_unbound()
    changed = await desk(request).store.queues.resume(body.queue, actor=who.actor)
    return Json({"queue": body.queue, "changed": changed, "paused": None})


@router.get("/api/v1/workers", responses=responses(models.WorkerList, body=False), openapi_extra=_OPERATE)
async def workers(request: Request) -> Json:
    """Who holds jobs now: how many, since when, and when they were last heard of."""
    caller(request).must_be_unbound()
    return Json({"workers": [worker._asdict() for worker in await desk(request).store.workers()]})
