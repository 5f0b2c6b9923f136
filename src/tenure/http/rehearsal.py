"""Document 004's endpoint for rehearsals: run a job by request, well or badly, without a worker and without waiting.

For development alone: it takes a job's lease from whoever has it, and the pause before a retry is skipped. It is closed
unless TENURE_INTERNAL_RUN=1.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request

from tenure.contract import HELD
from tenure.errors import BadInput, JobNotFound, Refused
from tenure.http.asked import JobId, caller, desk, job_number, needs, routes
from tenure.http.models import rehearsal as models
from tenure.http.models.refusal import responses
from tenure.http.refusals import Forbidden
from tenure.http.shown import Json
from tenure.job import Failure, Job
from tenure.postgres.store import Store

router = routes("rehearsal (document 004)")
_FORCED = Failure("the run was asked to fail", "ForcedFailure", "FORCED_FAIL", retryable=False)
_TRANSIENT = Failure("the run was asked to fail for now", "TransientFailure", "TRANSIENT_FAIL", retryable=True)


@router.post(
    "/api/v1/internal/jobs/{job_id}/run",
    responses=responses(models.RunAnswer, refuses=(404, 409), body=False),
    openapi_extra=needs("operate"),
)
async def run(
    request: Request,
    job_id: JobId,
    force_fail: Annotated[bool, Query(description="Fail for good: straight to the dead letters.")] = False,
    transient_fail: Annotated[
        bool, Query(description="Fail so that it is tried again, while the budget lasts.")
    ] = False,
) -> Json:
    """Run a job now: to its success, or to the failure that was asked for."""
    if not request.app.state.internal_run:
        raise Forbidden("running jobs by request is closed. Next: start the dispatcher with TENURE_INTERNAL_RUN=1")
    if force_fail and transient_fail:
        raise BadInput("a run fails for good or for now, not both. Next: give one of force_fail and transient_fail")
    number, who, at = job_number(job_id), caller(request), desk(request)
    await at.kind(number, who)
    job = await _taken(at.store, number, who.actor)
    if transient_fail or force_fail:
        await at.failures.report(job.held, _FORCED if force_fail else _TRANSIENT)
    else:
        await at.store.succeed(job.held, {"run_by": who.actor})
    meta = {"trace_id": request.state.trace_id, "request_id": request.state.request_id}
    return Json({"success": True, "data": await _stands(at.store, number), "meta": meta})


async def _taken(store: Store, number: int, actor: str) -> Job:
    """The job under a lease: that of whoever holds it, or one of our own, whether it is due or not."""
    (job,) = await store.jobs([number]) or (None,)
    if job is None:
        raise JobNotFound(number)
    if job.role not in HELD:
        await store.hasten(number)
        (taken,) = await store.claim_by_id([number], worker=actor, contract=job.contract)
        if isinstance(taken, Refused):
            raise taken
        job = taken
    if job.role == "leased":
        await store.start(job.held)
    return job


async def _stands(store: Store, number: int) -> dict[str, Any]:
    """Where the job stands now, in the document's words."""
    seen = await store.look(number)
    job = seen.job
    due_at = job.due_at if job.role == "ready" else None
    left = None if due_at is None else (due_at - seen.now).total_seconds()
    return {
        "job_id": str(job.id),
        "final_status": job.state,
        "retry_count": job.counter,
        "dlq_id": None if seen.letter is None else str(seen.letter.id),
        "retry_after_ms": None if left is None else max(0, round(left * 1_000)),
        "retry_at": due_at,
    }
