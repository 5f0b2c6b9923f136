"""Document 004's run endpoint: run a job by request, to success or failure, without a worker and without waiting.

For development only: it uses the lease of the job's holder, and skips the wait before a retry. It is closed unless
TENURE_INTERNAL_RUN=1.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel

from tenure.contracts.declaration import HELD
from tenure.errors import BadInput, JobNotFound
from tenure.http.application import ApiRequest
from tenure.http.error_response import Forbidden
from tenure.http.models import fields
from tenure.http.models.fields import described
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Failure, Job
from tenure.postgres.engine import only_answer
from tenure.postgres.store import Store


class RunQuery(BaseModel):
    """Document 004: how a run shall end; by default well."""

    force_fail: bool = described("Fail for good, with a dead letter.", default=False)
    transient_fail: bool = described("Fail and retry, while attempts are left.", default=False)


class RunData(BaseModel):
    """Document 004: the job after a run."""

    job_id: fields.JobId
    final_status: str = described("The job's state now.", examples=["succeeded"])
    retry_count: int = described("How often it was retried: the contract's own counter.")
    dlq_id: fields.Id | None = described("Its dead letter; null: none.")
    retry_after_ms: int | None = described("Milliseconds until its retry; null: no retry.")
    retry_at: datetime | None = described("When it is retried; null: no retry.")


class RunMeta(BaseModel):
    """Document 004: the ids of the request."""

    trace_id: fields.TraceId = described("The request's trace id, as in the header X-Trace-Id.")
    request_id: str = described("The request's id, as in the header X-Request-Id.", examples=["00f067aa0ba902b7"])


class RunAnswer(BaseModel):
    """Document 004: a run that was made."""

    success: Literal[True] = described("The run was made, whether the job succeeded or failed.")
    data: RunData = described("The job after the run.")
    meta: RunMeta = described("The ids of the request.")


_FORCED = Failure("the run was asked to fail", "ForcedFailure", "FORCED_FAIL", retryable=False)
_TRANSIENT = Failure("the run was asked to fail for now", "TransientFailure", "TRANSIENT_FAIL", retryable=True)


async def run_job(request: ApiRequest, query: RunQuery) -> dict[str, Any]:
    """Run a job now: to success, or to the requested failure."""
    if not request.application.internal_run:
        raise Forbidden("running jobs by request is closed. Next: start the dispatcher with TENURE_INTERNAL_RUN=1")
    if query.force_fail and query.transient_fail:
        raise BadInput("a run fails for good or for now, not both. Next: give one of force_fail and transient_fail")
    job_id, actor, calls = await request.own_job_id(), request.caller.actor, request.calls
    job = await _hold(calls.store, job_id, actor)
    if query.transient_fail or query.force_fail:
        await calls.report("fail", HolderCall(job.held, failure=_FORCED if query.force_fail else _TRANSIENT))
    else:
        await calls.store.succeed(job.held, {"run_by": actor})
    meta = {"trace_id": request.trace_id, "request_id": request.request_id}
    return {"success": True, "data": await _run_data(calls.store, job_id), "meta": meta}


async def _hold(store: Store, job_id: int, actor: str) -> Job:
    """The job under a lease: its holder's, or a new one, whether the job is due or not."""
    (job,) = await store.jobs([job_id]) or (None,)
    if job is None:
        raise JobNotFound(job_id)
    if job.role not in HELD:
        await store.make_due_now(job_id)
        job = only_answer(await store.claim_by_id([job_id], worker=actor, contract=job.contract))
    if job.role == "leased":
        await store.start(job.held)
    return job


async def _run_data(store: Store, job_id: int) -> dict[str, Any]:
    """The job after the run, in the document's words."""
    seen = await store.details(job_id)
    job = seen.job
    due_at = job.due_at if job.role == "ready" else None
    wait_s = None if due_at is None else (due_at - seen.now).total_seconds()
    return {
        "job_id": str(job.id),
        "final_status": job.state,
        "retry_count": job.counter,
        "dlq_id": None if seen.letter is None else str(seen.letter.id),
        "retry_after_ms": None if wait_s is None else max(0, round(wait_s * 1_000)),
        "retry_at": due_at,
    }
